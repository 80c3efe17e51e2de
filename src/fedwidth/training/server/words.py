"""What one client adds to secure sums: its update as words, segment by segment.

A segment has the words of the client's changes; then, where rows of classes are averaged by themselves, what the client
weighs in each class; then, where only the client knows that, what it weighs at all. Devices and the simulation make
words here, so they are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwidth.core.cohort import CohortSum
from fedwidth.core.running_mean import accumulable
from fedwidth.core.submodel import State
from fedwidth.errors import UpdateError
from fedwidth.plan.plan import Plan
from fedwidth.secure.fixed_point import FixedPoint
from fedwidth.training.server.layout import Layout


@dataclass(frozen=True)
class Wording:
    """How updates become words: the same for all clients of a round."""

    point: FixedPoint
    classes: int = 0
    """Classes whose rows are averaged over the clients that have them; 0: rows are like all else."""
    private_weight: bool = False
    """Whether only a client knows what it weighs, so that weights are summed like changes."""

    @property
    def beside(self) -> int:
        """How many words a segment has beside those of changes."""
        return self.classes + self.private_weight

    def words(
        self, total: CohortSum, start: State, layout: Layout, weight: float
    ) -> tuple[dict[int, NDArray[np.uint32]], int]:
        """The words of a client by segment, and how many of its changes were clipped.

        `total` is its update alone, `start` what it was sent, and `weight` what it weighs as far as all know. A client
        that weighs more than the largest weight counts as that. Rows of classes that it lacks do not change.
        """
        if self.private_weight:
            weight = min(total.total_weight, self.point.max_weight)
        trained, rows = dict(total.mean), np.empty(0, np.uint32)
        for name, own in total.weight.items():
            if isinstance(own, Tensor):
                trained[name] = torch.where(own > 0, trained[name], start[name].to(trained[name]))
                rows = (weight * (own > 0)).flatten().round().cpu().numpy().astype(np.uint32)
        changes, clipped = self.point.words(layout.flatten(trained), layout.flatten(start), weight)
        alone = np.array([round(weight)] if self.private_weight else [], np.uint32)
        found = layout.words.split(changes).items()
        return {segment: np.concatenate([own, rows, alone]) for segment, own in found}, clipped


def summed_tensors(plan: Plan, start: State, trained: Collection[str] = ()) -> list[str]:
    """The tensors that secure sums add up, in their order: those with a fraction, tied ones once.

    Where it is said which parameters are trained, others, which are frozen, are left out.
    """
    sent = (name for name in plan.axes if plan.tied.get(name) not in plan.axes and name not in plan.untrained)
    frozen = plan.parameters - frozenset(trained) if trained else frozenset()
    return [name for name in sent if start[name].is_floating_point() and name not in frozen]


def classes_of(plan: Plan) -> int:
    """How many classes have rows of their own; 0 where none have."""
    return max((plan.shapes[name][dim] for name, dim in plan.label_axes), default=0)


def check_whole_numbers(client: int, total: CohortSum, start: State, names: Sequence[str]) -> None:
    """Refuse tensors that are no numbers with a fraction and that a client has changed."""
    for name, mean in total.mean.items():
        if name not in names and not torch.equal(mean, accumulable(start[name]).to(mean.device)):
            raise UpdateError(
                f"client {client} changed '{name}', which holds {start[name].dtype}: secure sums add changes of"
                " floating-point numbers alone"
            )
