"""Which Flower this was made for.

The guard in front of the server, the bound on what is pulled from it and the scripts that read what Flower says use
parts of Flower that it may change with any minor version. So another one is refused before any of it is touched.
"""

from __future__ import annotations

from fedwidth.errors import OptionError
from fedwidth.flower.node.device import FLOWERS, why_not_flower

__all__ = ["FLOWERS", "check_flower"]


def check_flower() -> None:
    """Refuse to go on without Flower, or with a version this was not made for."""
    if (reason := why_not_flower()) is not None:
        raise OptionError(reason)
