"""What each operator says about axes."""

from fedwidth.plan.rules import compute, create, pick, reduce, reshape
from fedwidth.plan.rules.registry import RULES, Handler, handler

__all__ = ["RULES", "Handler", "compute", "create", "handler", "pick", "reduce", "reshape"]
