"""What a method is: the record `Method`, what its functions are told, and what they may change.

The files of the methods import all they need from here; a method of one's own finds the same in `fedwidth.methods`.
"""

from fedwidth.methods.definition.choosing import Cohort, Moment, everything, per_group
from fedwidth.methods.definition.closing import Beginning, Closing
from fedwidth.methods.definition.local import (
    FULL_GRADIENT,
    ClientPass,
    Local,
    LocalMoment,
    Memory,
    Sending,
    Sent,
    named,
    under,
)
from fedwidth.methods.definition.method import Method, Need
from fedwidth.methods.definition.options import (
    ROUNDING,
    Option,
    above_zero,
    at_least_zero,
    choice,
    count,
    is_number,
    is_share,
    share,
    switch,
)
from fedwidth.methods.definition.task import Task

__all__ = [
    "FULL_GRADIENT",
    "ROUNDING",
    "Beginning",
    "ClientPass",
    "Closing",
    "Cohort",
    "Local",
    "LocalMoment",
    "Memory",
    "Method",
    "Moment",
    "Need",
    "Option",
    "Sending",
    "Sent",
    "Task",
    "above_zero",
    "at_least_zero",
    "choice",
    "count",
    "everything",
    "is_number",
    "is_share",
    "named",
    "per_group",
    "share",
    "switch",
    "under",
]
