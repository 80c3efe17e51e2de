"""What a method would hand out round after round, without any training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fedwidth.errors import OptionError
from fedwidth.methods.closing import Closing
from fedwidth.methods.definition import Cohort, Method
from fedwidth.methods.local import Memory
from fedwidth.methods.task import Task
from fedwidth.plan.plan import Plan


def replay(method: Method, plan: Plan, cohorts: Iterable[Cohort], seed: int = 0) -> Iterator[list[Task]]:
    """The tasks of one round after the other, with the memory the method would have."""
    if "state" in method.reads:
        raise OptionError(f"{method.name} looks at the trained weights, so its choices cannot be foreseen")
    memory: Memory = {}
    for round, cohort in enumerate(cohorts):
        tasks = method.assign(plan, cohort, round, memory, seed)
        yield tasks
        if "memory" in method.reads:
            closing = Closing({}, (), plan, memory=memory, tasks=tasks, round=round, options=method.values)
            memory = method.remember(closing)
