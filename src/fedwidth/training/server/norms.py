"""Norms by capacity: clients of each capacity have normalisation layers of their own, and share everything else (NeFL).

Activations of a narrow sub-model are of another size than those of the whole model, and what a norm learns at one width
does not fit another. So the server keeps, for every capacity below 1, a second copy of the tensors of normalisation
layers (in the full model's shapes: which units a client holds may change from round to round):

    sent        a client of capacity c is sent its part of the state with the norms of c in place
    trained     engines train the clients of one capacity after those of another, each from such a state
    averaged    the norms of c are what the method would make of the round if only clients of c had taken part

The state itself has the norms of capacity 1, so that it is the whole model. Where no client can have capacity 1, they
are averaged over all clients, as everything else is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor, nn

from fedwidth.core.cohort import CohortSum
from fedwidth.core.measurement import NORMS
from fedwidth.core.submodel import State
from fedwidth.methods import Task
from fedwidth.training.engine import Engine, Report, RoundResult, Watch
from fedwidth.training.server.state import Server

BY_CAPACITY = "by-capacity"

Alone = Callable[[State, Sequence[Task], Sequence[CohortSum], Collection[str]], Mapping[str, Tensor]]
"""(state, tasks, sums, names) -> what the method makes of these tensors if only these clients had taken part."""


def is_norm(module: nn.Module) -> bool:
    """Whether a layer normalises: one of PyTorch's, or one without layers of its own whose class says so in its name.

    >>> is_norm(nn.LayerNorm(4)), is_norm(nn.Linear(4, 4)), is_norm(nn.Sequential(nn.LayerNorm(4)))
    (True, False, False)
    """
    named = "Norm" in type(module).__name__ and not any(True for _ in module.children())
    return named or isinstance(module, NORMS)


def norm_tensors(model: nn.Module) -> frozenset[str]:
    """The names of what normalisation layers learn: parameters that are trained, and running statistics.

    >>> sorted(norm_tensors(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))))
    ['1.bias', '1.weight']
    """
    found: set[str] = set()
    for path, module in model.named_modules(remove_duplicate=False):
        if is_norm(module):
            trained = (name for name, parameter in module.named_parameters(recurse=False) if parameter.requires_grad)
            buffers = (name for name, _ in module.named_buffers(recurse=False))
            found |= {f"{path}.{name}" if path else name for name in (*trained, *buffers)}
    return frozenset(found)


def first_norms(state: State, names: Iterable[str], enrolled: Iterable[float]) -> dict[float, dict[str, Tensor]]:
    """The norms that each capacity below 1 begins with: those of the first state."""
    found = sorted(names)
    return {float(each): {name: state[name].clone() for name in found} for each in enrolled if each < 1}


def in_order(tasks: Sequence[Task]) -> list[Task]:
    """The tasks with those of one capacity together, in the order in which capacities first appear."""
    capacities = list(dict.fromkeys(task.capacity for task in tasks))
    return sorted(tasks, key=lambda task: capacities.index(task.capacity))


def train_by_capacity(engine: Engine, server: Server, tasks: Sequence[Task], watch: Watch | None) -> RoundResult:
    """Train tasks `in_order`, those of each capacity from a state with its norms."""
    sums: list[CohortSum] = []
    report: Report | None = None
    for capacity, own in _by_capacity(tasks).items():
        before = tasks.index(own[0])
        watching = None if watch is None else _from(watch, before, len(tasks))
        found, reported = engine.run(server.state_at(capacity), own, server.round, watch=watching)
        sums += found
        report = reported if report is None else _joined(report, reported)
    assert report is not None
    return sums, report


def close_by_capacity(
    server: Server,
    closed: Mapping[str, Tensor],
    tasks: Sequence[Task],
    sums: Sequence[CohortSum],
    alone: Alone,
    *,
    full: bool,
) -> tuple[dict[str, Tensor], dict[float, dict[str, Tensor]]]:
    """The new state and the new norms of each capacity; `full` says whether clients may have capacity 1.

    `closed` is what the method made of all clients, and `tasks` are those whose work counts, `in_order`.
    """
    state, norms = dict(closed), {capacity: dict(own) for capacity, own in server.norms.items()}
    names = list(next(iter(norms.values()), {}))
    if full:
        state |= {name: server.state[name] for name in names}
    for capacity, (own, held) in _sums_by_capacity(tasks, sums).items():
        if capacity not in norms and not (full and capacity == 1):
            continue
        found = alone(server.state_at(capacity), own, held, names)
        (state if capacity == 1 else norms[capacity]).update(found)
    return state, norms


def _by_capacity(tasks: Sequence[Task]) -> dict[float, list[Task]]:
    found: dict[float, list[Task]] = {}
    for task in tasks:
        found.setdefault(task.capacity, []).append(task)
    return found


def _sums_by_capacity(
    tasks: Sequence[Task], sums: Sequence[CohortSum]
) -> dict[float, tuple[list[Task], list[CohortSum]]]:
    """The tasks and the sums of each capacity; of each there is one sum for each cohort, in order of appearance."""
    found, start = {}, 0
    for capacity, own in _by_capacity(tasks).items():
        end = start + len({task.cohort for task in own})
        found[capacity] = own, list(sums[start:end])
        start = end
    assert start == len(sums)
    return found


def _from(watch: Watch, before: int, number: int) -> Watch:
    """A watch of some of a round's tasks, which tells of all of them."""
    return lambda done, _: watch(before + done, number)


def _joined(first: Report, second: Report) -> Report:
    """What the clients of both reported."""
    return replace(
        first,
        passes=first.passes + second.passes,
        losses=first.losses + second.losses,
        absent={**first.absent, **second.absent},
        refused=first.refused | second.refused,
        unused=first.unused + second.unused,
        kept={**first.kept, **second.kept},
    )
