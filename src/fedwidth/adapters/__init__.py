"""Low-rank adapters: how a model gets them, how they are averaged exactly, what is measured of them, and their files.

That ranks are widths stands below, in `plan/adapters.py` and `core/folding.py`: here is what only adapters need.
"""

from fedwidth.adapters.adapt import adapt
from fedwidth.adapters.files import load, merge, save

__all__ = ["adapt", "load", "merge", "save"]
