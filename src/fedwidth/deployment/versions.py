"""Which versions of Flower deployments work with.

The guard in front of the SuperLink, the limit on what is pulled from it, and the scripts that read Flower's output use
parts of Flower that may change with any minor version. So every other version is refused before any part is used.
"""

from __future__ import annotations

from fedwidth.deployment.node.device import FLOWERS, why_not_flower
from fedwidth.errors import OptionError

__all__ = ["FLOWERS", "check_flower"]


def check_flower() -> None:
    """Refuse to go on without Flower, or with a version this was not made for."""
    if (reason := why_not_flower()) is not None:
        raise OptionError(reason)
