"""fedwidth: federated learning in which every device trains the width it can afford.

Each idea in its place: the plan says which axes share a width (`trace`), a method which part of the model a client
holds (`method(...).select`) and how it trains that, aggregation averages what overlaps (`merge`).

Public are the names below (`__all__`), and what the pages under docs/reference/ list of these modules:

    fedwidth.adapters      low-rank adapters: their files, and models with them merged
    fedwidth.methods       what a method of one's own is made of; called, it gives every method by name
    fedwidth.experiment    Experiment, Result, Stopped: whole runs
    fedwidth.settings      the settings of a run
    fedwidth.config        reading settings and recipes, writing them down
    fedwidth.data          data sets, partitions, data of one's own
    fedwidth.models        the models of the papers, and what they are made of
    fedwidth.core          ways to choose units, what a sub-model costs, what a part is
    fedwidth.devices       capacities, and how they go with the data
    fedwidth.analysis      which weights a method trains, what an accuracy took
    fedwidth.report        reports and figures
    fedwidth.export        files of a run's model
    fedwidth.flower        a Strategy and three functions for a Flower app of one's own
    fedwidth.errors        what is raised

Everything else may change without notice. `narrow` is the function; the module it stands in is `fedwidth.core.narrow`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from fedwidth import methods
from fedwidth.adapters import adapt
from fedwidth.core.aggregation import finalise, merge
from fedwidth.core.cohort import CohortSum
from fedwidth.core.index import Index
from fedwidth.core.narrow import narrow, skeleton
from fedwidth.core.submodel import extract, state_of
from fedwidth.core.updates import Update, check_update
from fedwidth.errors import FedwidthError
from fedwidth.methods import Closing, Local, Method, method
from fedwidth.moved import announce_moved
from fedwidth.plan import Plan, trace
from fedwidth.training.server.step import server_step

if TYPE_CHECKING:
    from fedwidth.devices.fit import fit
    from fedwidth.export.load import load

__version__ = "0.2.0"

__all__ = [
    "Closing",
    "CohortSum",
    "FedwidthError",
    "Index",
    "Local",
    "Method",
    "Plan",
    "Update",
    "adapt",
    "check_update",
    "extract",
    "finalise",
    "fit",
    "load",
    "merge",
    "method",
    "methods",
    "narrow",
    "server_step",
    "skeleton",
    "state_of",
    "trace",
]


_LATER = {"fit": "fedwidth.devices.fit", "load": "fedwidth.export.load"}
"""Names that stand in rooms which are imported only when they are needed."""


announce_moved()


def __getattr__(name: str) -> object:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    if name == "History":
        raise ImportError(  # which `from fedwidth import History` shows as it is
            "fedwidth.History is gone since 0.2: what a method remembers is a mapping of tensors, which"
            " Method.advance makes and method.select takes as memory=…"
        )
    raise AttributeError(f"module 'fedwidth' has no attribute '{name}'")
