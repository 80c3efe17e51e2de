"""Private sums: the new state of a round, which tells little of any one client (McMahan et al. 2018, by elements).

A client's change d_m of the part I_m that it holds is clipped to the norm C, all parameters together, and then counts

    N[k] = sum over m with k in I_m of d_m[k],    theta[k] += (N[k] + noise[k]) / D[k],    noise of deviation z C

so that one client moves N by at most C whatever its width. Dividing tells nothing more only where D does not depend on
who came: D[k] = max(D_min, expected number of holders), which is known before the round. For the same reason noise is
added to every element that a client of any enrolled capacity would hold, whoever came, also where nobody did. Elements
that no enrolled client would hold keep their bits. So do buffers, of which nothing is released.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedwidth.core.aggregation import weight_shape
from fedwidth.core.cohort import CohortSum
from fedwidth.core.index import Index
from fedwidth.core.submodel import State, put, take
from fedwidth.errors import OptionError
from fedwidth.methods import Task
from fedwidth.plan.plan import Plan
from fedwidth.privacy.clipping import OF_BITS, adapted, factor, noise_of_updates, norm_of
from fedwidth.randomness import numpy_generator
from fedwidth.settings import PrivacySettings


@dataclass(frozen=True)
class Released:
    """What a private round released, and what it was made of, which only a simulation knows."""

    clip: float
    """The norm to which updates were clipped."""
    next_clip: float
    """That of the next round."""
    clipped: int
    """How many updates were longer."""
    signal_to_noise: float | None
    """The length of the sum beside that of its noise, where both are known."""


@dataclass(frozen=True)
class Window:
    """What clients of one capacity hold in a round, and how many of them are expected in it."""

    index: Index
    expected: float


@dataclass(frozen=True)
class PrivateRound:
    """The private sum of one round."""

    state: State
    """The state that the round began with."""
    plan: Plan
    windows: Sequence[Window]
    """Of every enrolled capacity."""
    settings: PrivacySettings
    names: Collection[str]
    """The tensors that clients train, which alone are released."""
    clip: float
    seed: int
    round: int

    def average(self, tasks: Sequence[Task], sums: Sequence[CohortSum]) -> tuple[dict[str, Tensor], Released]:
        """The new state, from the sums of these tasks' single clients, of which there may be none."""
        numerators = {name: torch.zeros_like(self.state[name], dtype=torch.float64) for name in self._trained}
        unclipped = 0
        for task, total in zip(tasks, sums, strict=True):
            change, shorter = self._clipped(task, total)
            unclipped += shorter
            for name, own in change.items():
                put(numerators[name], take(numerators[name], task.index, name) + own, task.index, name)
        drawn = numpy_generator(self.seed, "privacy noise", self.round)
        result, signal, noise = dict(self.state), 0.0, 0.0
        for name, numerator in numerators.items():
            old, by = self.state[name], self.denominator(name)
            added = torch.from_numpy(drawn.standard_normal(tuple(old.shape))).to(old.device) * self.deviation
            means = [torch.where(by > 0, each / by.clamp(min=1e-300), 0.0) for each in (numerator, added)]
            result[name] = (old.double() + means[0] + means[1]).to(old.dtype)
            signal, noise = signal + float(means[0].square().sum()), noise + float(means[1].square().sum())
        result |= {name: result[first] for name, first in self.plan.tied.items() if first in numerators}
        # The last draw of the round, so that what is noised does not depend on whether bits are.
        share = self._unclipped_share(unclipped, len(tasks), float(drawn.standard_normal()))
        quantile, speed = self.settings.quantile, self.settings.clip_rate
        following = adapted(self.clip, unclipped=share, quantile=quantile, speed=speed) if quantile else self.clip
        return result, Released(self.clip, following, len(tasks) - unclipped, (signal / noise) ** 0.5)

    def denominator(self, name: str) -> Tensor:
        """What the sum of each element is divided by, in a shape that broadcasts; 0 where nothing is released."""
        held = torch.zeros(weight_shape(self.plan, name), dtype=torch.float64, device=self.state[name].device)
        for window in self.windows:
            put(held, take(held, window.index, name) + window.expected, window.index, name)
        return torch.where(held > 0, held.clamp(min=self.settings.min_denominator), 0.0)

    def denominators(self) -> Iterator[tuple[float, float]]:
        """How many elements are divided by how much, all together."""
        for name in self._trained:
            by = self.denominator(name)
            values, counts = torch.unique(by, return_counts=True)
            each = self.state[name].numel() / by.numel()
            yield from ((float(n) * each, float(v)) for v, n in zip(values, counts, strict=True) if v > 0)

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise on a sum: of the clip that clipped it."""
        settings = self.settings
        if not settings.quantile:
            return settings.noise * self.clip
        return noise_of_updates(settings.noise, self._bits_noise) * self.clip

    @property
    def _bits_noise(self) -> float:
        return self.settings.bits_noise or OF_BITS * self._expected

    @property
    def _expected(self) -> float:
        return sum(window.expected for window in self.windows)

    @property
    def _trained(self) -> list[str]:
        """The tensors that are released, tied ones once."""
        return [
            name for name in self.plan.axes if name in self.names and self.plan.tied.get(name) not in self.plan.axes
        ]

    def _clipped(self, task: Task, total: CohortSum) -> tuple[dict[str, Tensor], bool]:
        """What counts of one client's change, and whether that is all of it."""
        sent = task.part.cut(self.state, self.plan)
        change = {name: total.mean[name].double() - sent[name].double() for name in self._trained}
        norm = norm_of(change)
        scale = factor(norm, self.clip)
        return {name: own * scale for name, own in change.items()}, norm <= self.clip

    def _unclipped_share(self, unclipped: int, clients: int, drawn: float) -> float:
        """The share of updates that were not clipped, with noise, of the clients that were expected."""
        return (unclipped - clients / 2 + self._bits_noise * drawn) / self._expected + 0.5


def check_real(state: State, names: Collection[str]) -> None:
    """Refuse parameters that are complex numbers."""
    for name in names:
        if not state[name].is_floating_point():
            raise OptionError(f"privacy.noise is for real numbers, and '{name}' holds {state[name].dtype}")
