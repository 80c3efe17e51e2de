"""Modules that documentation of 0.1 and 0.2 named and that have moved: who imports one is told where it is now."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder

MOVED = {
    "fedwidth.aggregation": "fedwidth.core.aggregation",
    "fedwidth.capacity": "fedwidth.devices.capacity",
    "fedwidth.correlation": "fedwidth.devices.correlation",
    "fedwidth.cost": "fedwidth.core.cost",
    "fedwidth.coverage": "fedwidth.analysis.coverage",
    "fedwidth.index": "fedwidth.core.index",
    "fedwidth.methods.find": "fedwidth.methods",
    "fedwidth.narrow": "fedwidth.core.narrow",
    "fedwidth.part": "fedwidth.core.part",
    "fedwidth.selection": "fedwidth.core.selection",
    "fedwidth.server": "fedwidth.training.server",
    "fedwidth.step": "fedwidth.training.step",
    "fedwidth.submodel": "fedwidth.core.submodel",
    "fedwidth.target": "fedwidth.analysis.target",
}


class _Moved(MetaPathFinder):
    """Asked last, for what nothing else has found."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Find nothing, and say where to look."""
        del path, target
        if fullname in MOVED:  # without `name=`, by which `from fedwidth import index` would know, and say nothing
            raise ModuleNotFoundError(f"{fullname} has moved: it is {MOVED[fullname]} now")


def announce_moved() -> None:
    """From now on, say where a module has moved when it is imported."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.append(_Moved())
