"""The server's side of a round: its state, and the step from old state to aggregate.

The step itself, and what server optimisers do, stands in `step`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from torch import Tensor

from fedwidth.core.submodel import State
from fedwidth.methods import Memory
from fedwidth.privacy.spent import Spent
from fedwidth.settings import ServerSettings
from fedwidth.training.client_memory import ClientMemory
from fedwidth.training.server.quarantine import Quarantine
from fedwidth.training.server.step import step_size, take_step

__all__ = ["Server", "by_name", "step_size", "with_norms"]

Named = TypeVar("Named")


@dataclass(frozen=True)
class Server:
    """What the server holds between rounds; a checkpoint is exactly this."""

    state: Mapping[str, Tensor]
    round: int = 0
    memory: Memory = field(default_factory=dict)
    """What the method remembers."""
    moments: Mapping[str, Tensor] = field(default_factory=dict)
    """Moments of the server optimiser, 'first.<tensor>' and 'second.<tensor>'."""
    clients: ClientMemory = field(default_factory=ClientMemory)
    """What the clients remember, each for itself."""
    quarantine: Quarantine = field(default_factory=Quarantine)
    """Which clients are left out for a while."""
    spent: Spent = field(default_factory=Spent)
    """What a private run has opened so far."""
    norms: Mapping[float, State] = field(default_factory=dict)
    """Where each capacity has normalisation layers of its own (`norms.py`): their tensors, in the full model's shapes,
    for every capacity below 1."""
    clip: float = 0.0
    """The norm to which updates of the next private round are clipped; 0: what the settings say."""

    def __repr__(self) -> str:
        """In one line: its tensors are not for reading."""
        return f"Server(round={self.round}, {len(self.state)} tensors)"

    def state_at(self, capacity: float) -> State:
        """The state that sub-models of this capacity are cut out of: with its norms, where it has its own."""
        own = self.norms.get(capacity)
        return self.state if own is None else {**self.state, **own}

    def skip(self) -> Server:
        """The server after a round in which nobody trained."""
        return replace(self, round=self.round + 1)

    def advance(
        self,
        aggregate: Mapping[str, Tensor],
        memory: Memory,
        settings: ServerSettings,
        trained: frozenset[str],
        norms: Mapping[float, State] | None = None,
    ) -> Server:
        """The server after this round; `trained` names the parameters (buffers take the aggregate as it is).

        `norms` are those of each capacity after the round, where there are such; they take the same step.
        """
        state, moments = take_step(
            self.state, aggregate, settings, round=self.round, moments=self.moments, trained=trained
        )
        stepped = {}
        for capacity, own in (norms or {}).items():
            found, moments = take_step(
                by_name(capacity, self.norms[capacity]),
                by_name(capacity, own),
                settings,
                round=self.round,
                moments=moments,
                trained=by_name(capacity, dict.fromkeys(trained)),
            )
            stepped[capacity] = dict(zip(own, found.values(), strict=True))
        return replace(self, state=state, round=self.round + 1, memory=memory, moments=moments, norms=stepped)


def by_name(capacity: float, tensors: Mapping[str, Named]) -> dict[str, Named]:
    """The same with names that say of which capacity: `0.5/norm.weight`."""
    return {f"{capacity!r}/{name}": tensor for name, tensor in tensors.items()}


def with_norms(state: State, norms: Mapping[float, State]) -> State:
    """A state with the norms of each capacity beside it, where there are such."""
    return {**state, **{name: tensor for each, own in norms.items() for name, tensor in by_name(each, own).items()}}
