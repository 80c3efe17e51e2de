"""fedwidth: federated learning in which every device trains the width it can afford.

Three ideas in three places: the plan says which axes share a width (`trace`), a method says which units a client keeps
(`method(...).select`), aggregation averages what overlaps (`merge`).
"""

from fedwidth.aggregation import CohortSum, Update, finalise, merge
from fedwidth.errors import FedwidthError
from fedwidth.index import Index
from fedwidth.methods import History, Method, method, methods
from fedwidth.narrow import narrow
from fedwidth.plan import Plan, trace
from fedwidth.submodel import extract, state_of

__version__ = "0.1.0"

__all__ = [
    "CohortSum",
    "FedwidthError",
    "History",
    "Index",
    "Method",
    "Plan",
    "Update",
    "extract",
    "finalise",
    "merge",
    "method",
    "methods",
    "narrow",
    "state_of",
    "trace",
]
