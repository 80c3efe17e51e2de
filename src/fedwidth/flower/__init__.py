"""For Flower apps of one's own, on Flower's public API alone: `Strategy`, `introduce`, `fitted` and `local_loss`.

They are in `strategy/`, and docs/flower-strategy.md explains them. The deployment of our own is another room,
`fedwidth.deployment`. Nothing here imports flwr until it is used; it comes with `pip install 'fedwidth[flower]'`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedwidth.flower.strategy.client import fitted, introduce, local_loss
    from fedwidth.flower.strategy.strategy import Strategy

__all__ = ["Strategy", "fitted", "introduce", "local_loss"]

_HOMES = {"Strategy": "strategy", "fitted": "client", "introduce": "client", "local_loss": "client"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    try:
        return getattr(import_module(f"fedwidth.flower.strategy.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "flwr":
            raise
        raise ImportError("fedwidth.flower needs Flower: pip install 'fedwidth[flower]'") from None
