"""What each operator says about axes."""

from fedwidth.plan.rules import compute, create, index, normalise, pick, reduce, reshape, window
from fedwidth.plan.rules.registry import RULES, Handler, handler

__all__ = [
    "RULES",
    "Handler",
    "compute",
    "create",
    "handler",
    "index",
    "normalise",
    "pick",
    "reduce",
    "reshape",
    "window",
]
