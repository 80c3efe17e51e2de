"""Which axes of which tensors share a width."""

from fedwidth.plan.plan import Coupling, Group, Plan
from fedwidth.plan.trace import trace

__all__ = ["Coupling", "Group", "Plan", "trace"]
