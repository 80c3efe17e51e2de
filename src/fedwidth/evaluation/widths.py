"""What summaries say of the models of several widths: what each scores by itself, and what they score together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedwidth.objectives.metric import ACCURACY

ALL, CHOSEN = "together", "chosen"
SEVERAL = (ALL, CHOSEN)
"""Whose answers are put together: those of models of all widths, or of the widths that validation samples choose."""


def at_widths(summary: Mapping[str, Any], metric: str = ACCURACY.name) -> dict[str, float]:
    """What a run measured at each width: the mean over draws, where clients of one width hold different units.

    >>> at_widths({"capacity_accuracy": {"1": 0.9, "0.5": 0.4}, "capacity_accuracy_mean": {"1": 0.9, "0.5": 0.5}})
    {'1': 0.9, '0.5': 0.5}
    """
    found = summary.get(f"capacity_{metric}_mean") or summary.get(f"capacity_{metric}") or {}
    return {width: value for width, value in found.items() if value is not None} if isinstance(found, dict) else {}


def key_of(which: str, metric: str = ACCURACY.name) -> str:
    """The key of what models of several widths score together, `ALL` or `CHOSEN`, in metrics and summaries.

    >>> key_of(CHOSEN)
    'chosen_accuracy'
    """
    return f"{which}_{metric}"
