"""Robust sums: averages in which a few clients cannot do much, element by element over the clients that hold it.

    trimmed        the mean without the t largest and the t smallest values, t = ceil(share h) of h holders
    median         the middle value, or the mean of the two in the middle: trimmed as far as possible
    norm-bounded   the mean, after every update was bounded to a multiple of the round's median norm

(Yin et al. 2018 for the first two, where all hold everything; Sun et al. 2019 for the third.) Of fewer than three
values nobody can say which one is wrong: such elements keep their old value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedwidth.core.aggregation import in_dtype_of
from fedwidth.core.cohort import CohortSum
from fedwidth.core.running_mean import accumulable
from fedwidth.core.submodel import State, put
from fedwidth.methods import Task
from fedwidth.plan.plan import Plan
from fedwidth.settings import MIN_HOLDERS, ServerSettings
from fedwidth.training.server.clipping import clip_updates

CHUNK = 1 << 24
"""Values that are put in order at a time."""


@dataclass(frozen=True)
class Kept:
    """What robust sums left as it was."""

    elements: int
    """Elements that somebody held, but fewer than three clients."""
    held: int
    """Elements that somebody held."""

    @property
    def share(self) -> float:
        """The share of elements that stayed as they were, of those that somebody trained."""
        return self.elements / self.held if self.held else 0.0


def robust_average(
    state: State, sums: Sequence[CohortSum], tasks: Sequence[Task], plan: Plan, settings: ServerSettings
) -> tuple[dict[str, Tensor], Kept]:
    """The new state from the sums of single clients, given in the order of their tasks, and what was left as it was."""
    if settings.robust == "norm-bounded":
        sums = clip_updates(state, sums, tasks, plan, settings.robust_bound).sums
    result, kept, held = dict(state), 0, 0
    for name in (name for name in state if plan.tied.get(name) not in state):
        old = state[name].detach()
        here = [total for total in sums if name in total.mean]
        values = torch.stack([_spread(total, name, old) for total in here]) if here else old.new_zeros(0, old.numel())
        found = torch.empty_like(accumulable(old)).flatten()
        step = max(1, CHUNK // max(1, len(here)))
        for begin in range(0, old.numel(), step):
            part = slice(begin, begin + step)
            found[part], holders = _average(accumulable(old).flatten()[part], values[:, part], settings)
            kept += int(((holders > 0) & (holders < MIN_HOLDERS)).sum())
            held += int((holders > 0).sum())
        result[name] = in_dtype_of(found.reshape(old.shape), old)
    result |= {name: result[first] for name, first in plan.tied.items() if first in result}
    return result, Kept(kept, held)


def _spread(total: CohortSum, name: str, old: Tensor) -> Tensor:
    """The values of one client laid out as the whole tensor, infinite where it holds nothing."""
    mean, weight = total.mean[name].double(), total.weight[name]
    if isinstance(weight, Tensor):  # rows of classes that the client lacks
        mean = torch.where(weight > 0, mean, math.inf)
    if total.index.sliced(name):
        full = torch.full(old.shape, math.inf, dtype=torch.float64, device=old.device)
        put(full, mean, total.index, name)
        mean = full
    return mean.flatten()


def _average(old: Tensor, values: Tensor, settings: ServerSettings) -> tuple[Tensor, Tensor]:
    """The robust average of each column, its old value where it has too few, and how many it has."""
    holders = torch.isfinite(values).sum(0)
    if settings.robust == "median":
        cut = (holders - 1) // 2
    elif settings.robust == "trimmed":
        # A share such as 0.2 of 10 is two, whatever its last bit says.
        cut = torch.ceil(holders * settings.robust_share - 1e-9).long().minimum((holders - 1) // 2)
    else:
        cut = torch.zeros_like(holders)
    ordered = values.sort(0).values  # those who do not hold it come last
    rank = torch.arange(len(values), device=values.device)[:, None]
    counts = (rank >= cut) & (rank < holders - cut)
    # The mean of changes, not of values: where nothing changes nothing does, bit for bit.
    changes = torch.where(counts, ordered - old.double(), 0.0)
    mean = changes.sum(0) / (holders - 2 * cut).clamp(min=1)
    return torch.where(holders >= MIN_HOLDERS, (old.double() + mean).to(old.dtype), old), holders
