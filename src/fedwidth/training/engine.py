"""What an engine is: it is asked to train the clients of a round, and gives sums and what the clients reported."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from fedwidth.core.cohort import CohortSum
from fedwidth.methods import Task
from fedwidth.randomness import host_kept
from fedwidth.training.server.clipping import FAR
from fedwidth.training.server.private import Released
from fedwidth.training.server.robust import Kept
from fedwidth.training.server.secure import Opened

Coming = Callable[[], tuple[Sequence[Task], int] | None]
"""The next round's tasks and its number, or None where that cannot be known yet."""

Watch = Callable[[int, int], None]
"""Called while a round goes on, with the number of clients that have trained and the number of all."""


@dataclass(frozen=True)
class Report:
    """What the clients of a round reported: one entry per task whose client answered, in task order."""

    passes: tuple[int, ...]
    """Training samples each client has seen, counted as often as they were seen."""
    losses: tuple[float, ...]
    absent: Mapping[int, str] = field(default_factory=dict)
    """Clients whose work does not count, and why: late, gone, refused or left out for a while."""
    refused: frozenset[int] = frozenset()
    """The absent clients that sent something which was refused."""
    excess: Mapping[int, float] = field(default_factory=dict)
    """By client, where updates are clipped: how many times as long as the bound its update was."""
    opposed: Mapping[int, float] = field(default_factory=dict)
    """By client, where updates are screened: the cosine of an update that pointed away from the others."""
    unused: tuple[tuple[Task, int], ...] = ()
    """Tasks that were trained and do not count, and the samples they saw: they cost what others do."""
    kept: Mapping[int, Mapping[str, Mapping[str, Tensor]]] = field(default_factory=dict)
    """What clients keep for themselves: their part of their memory, by client, name and tensor."""
    answered: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """By client, where models stay with clients: for how many samples it answered, and in how many bytes."""
    error: float | None = None
    """Of a model with adapters: how far their average is from the mean of products, as a share of it."""
    opened: Opened | None = None
    """What was opened of secure sums, where the round has such."""
    released: Released | None = None
    """What was released of a private round."""
    untouched: Kept | None = None
    """What robust sums left as it was, where the round has such."""

    @property
    def struck(self) -> list[int]:
        """Clients that sent what was refused, far too large or pointed away from the others."""
        far = {client for client, times in self.excess.items() if times > FAR}
        return sorted({*self.refused, *far, *self.opposed})

    def without(self, numbers: Mapping[int, str], tasks: Sequence[Task]) -> Report:
        """The report without those of its tasks, by their numbers, that do not count, and why."""
        kept = [number for number in range(len(tasks)) if number not in numbers]
        out = {tasks[number].client: why for number, why in numbers.items()}
        return replace(
            self,
            passes=tuple(self.passes[number] for number in kept),
            losses=tuple(self.losses[number] for number in kept),
            absent={**self.absent, **out},
            unused=tuple((tasks[number], self.passes[number]) for number in numbers),
            kept={client: own for client, own in self.kept.items() if client not in out},
        )


RoundResult = tuple[Sequence[CohortSum], Report]
"""One sum per cohort, in order of first appearance, and what the clients reported."""


@dataclass(frozen=True)
class RoundRequest:
    """What an engine is asked to train in a round."""

    state: Mapping[str, Tensor]
    tasks: Sequence[Task]
    round: int
    coming: Coming | None = None
    """Says which round comes next; an engine that can prepare it asks while its device is busy with this one."""
    watch: Watch | None = None
    """Told how far a long round is."""


class Engine(ABC):
    """Trains the clients of a round. Whatever the engine, the same tasks give the same sums."""

    def run(
        self,
        state: Mapping[str, Tensor],
        tasks: Sequence[Task],
        round: int,
        *,
        coming: Coming | None = None,
        watch: Watch | None = None,
    ) -> RoundResult:
        """Train every task of a round from `state`, and sum the updates by cohort."""
        with host_kept():  # clients draw from these generators, each from a seed of its own
            return self.train_round(RoundRequest(state, tasks, round, coming, watch))

    @abstractmethod
    def train_round(self, request: RoundRequest) -> RoundResult:
        """Train what is requested, in the engine's own way."""

    @abstractmethod
    def close(self) -> None:
        """Give back workers and memory."""
