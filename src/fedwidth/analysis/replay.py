"""What a method would hand out round after round, without any training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from fedwidth.errors import OptionError
from fedwidth.methods import Closing, Memory, Method, Task
from fedwidth.methods.definition import Cohort
from fedwidth.plan.plan import Plan


def replay(
    method: Method,
    plan: Plan,
    cohorts: Iterable[Cohort],
    seed: int = 0,
    *,
    counts: Callable[[int, Task], bool] = lambda *_: True,
) -> Iterator[list[Task]]:
    """The tasks of one round after the other, with the memory the method would have.

    `counts(round, task)` says whether a task's training counted, where clients may be late or gone.
    """
    if not method.slices:
        raise OptionError(f"{method.name} hands out no slices of the model, so nobody can say which weights it trains")
    if "state" in method.reads:
        raise OptionError(f"{method.name} looks at the trained weights, so its choices cannot be foreseen")
    if "memory" in method.reads and method.init is not None:
        raise OptionError(f"{method.name} remembers more than who held what, so its choices cannot be foreseen")
    memory: Memory = {}
    for round, cohort in enumerate(cohorts):
        tasks = method.assign(plan, cohort, round, memory, seed)
        yield tasks
        if "memory" in method.reads and tasks:  # a round without clients leaves the memory as it was
            done = [task for task in tasks if counts(round, task)]
            closing = Closing({}, (), plan, memory=memory, tasks=done, round=round, options=method.values)
            memory = method.remember(closing)
