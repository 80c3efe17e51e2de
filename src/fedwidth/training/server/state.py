"""The server's side of a round: its state, and the step from old state to aggregate.

Plain averaging takes the aggregate as it is. The server optimisers (Reddi et al. 2021) treat aggregate - old as a
gradient. Elements whose aggregate equals their old value, above all those nobody trained, are left alone by all of
them: neither moved by old momentum nor their moments decayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedwidth.methods import Memory
from fedwidth.privacy.spent import Spent
from fedwidth.settings import ServerSettings
from fedwidth.training.client_memory import ClientMemory
from fedwidth.training.server.quarantine import Quarantine


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
    clip: float = 0.0
    """The norm to which updates of the next private round are clipped; 0: what the settings say."""

    def skip(self) -> Server:
        """The server after a round in which nobody trained."""
        return replace(self, round=self.round + 1)

    def advance(
        self,
        aggregate: Mapping[str, Tensor],
        memory: Memory,
        settings: ServerSettings,
        trained: frozenset[str],
    ) -> Server:
        """The server after this round; `trained` names the parameters (buffers take the aggregate as it is)."""
        rate = step_size(settings, self.round)
        if settings.optimiser == "plain" and rate == 1.0:
            return replace(self, state=aggregate, round=self.round + 1, memory=memory)
        state, moments = dict(aggregate), dict(self.moments)
        for name in (name for name in aggregate if name in trained):
            step = _step(name, aggregate[name] - self.state[name], moments, settings)
            state[name] = self.state[name] + rate * step
        return replace(self, state=state, round=self.round + 1, memory=memory, moments=moments)


def step_size(settings: ServerSettings, round: int) -> float:
    """The server step of a round: it shrinks every `lr_every` rounds, up to round `lr_until`.

    >>> [step_size(ServerSettings(lr_decay=0.5, lr_every=10, lr_until=20), round) for round in (0, 9, 10, 20, 90)]
    [1.0, 1.0, 0.5, 0.25, 0.25]
    """
    last = min(round, settings.lr_until) if settings.lr_until else round
    return settings.lr * settings.lr_decay ** (last // settings.lr_every)


def _step(name: str, delta: Tensor, moments: dict[str, Tensor], settings: ServerSettings) -> Tensor:
    """The direction the optimiser takes for this change, updating its moments."""
    if settings.optimiser == "plain":
        return delta
    moved = delta != 0
    first = moments.get(f"first.{name}", torch.zeros_like(delta))
    if settings.optimiser == "fedavgm":
        first = torch.where(moved, settings.momentum * first + delta, first)
        moments[f"first.{name}"] = first
        return torch.where(moved, first, 0.0)
    first = torch.where(moved, settings.momentum * first + (1 - settings.momentum) * delta, first)
    square, keep = delta.square(), settings.second_moment
    second = moments.get(f"second.{name}", torch.zeros_like(delta))
    if settings.optimiser == "fedadam":
        second = torch.where(moved, keep * second + (1 - keep) * square, second)
    else:  # fedyogi
        second = second - (1 - keep) * square * torch.sign(second - square)
    moments[f"first.{name}"], moments[f"second.{name}"] = first, second
    return torch.where(moved, first / (second.sqrt() + settings.epsilon), 0.0)
