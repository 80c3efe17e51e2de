"""Which methods can run inside someone's own Flower app."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedwidth.methods import Method

if TYPE_CHECKING:
    from fedwidth.data import Data


def why_not(method: Method, public: Data | None = None) -> str | None:
    """The reason why a method cannot run inside someone's own Flower app, or None where it can."""
    local = method.local
    if "own" in method.reads or (local is not None and (local.own or local.answers is not None)):
        return f"{method.title} needs clients that remember, which clients of a Flower app do not: use fedwidth deploy"
    if local is not None and (local.sends is not None or local.gives is not None or local.reports is not None):
        return f"{method.title} sends more than sub-models, which a Flower app does not pass on: use fedwidth deploy"
    if method.unfit is not None:
        return f"{method.title} must know what training takes of a device's memory, which a Flower app does not say"
    if method.public and public is None:
        return f"{method.title} closes a round with data of the server's own: give Strategy(…, public=data)"
    return None
