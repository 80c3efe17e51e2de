"""Which engine `engine = "auto"` takes, and why.

Equal settings must give equal bits on every machine. Serial and processes agree to the last bit, so between those two
the number of cores may decide; stacked products sum in another order, so whether clients are stacked depends on the
settings, the model and the data alone:

    a step of one client is small (`SMALL_STEP` multiply-adds), the
    round's sub-models fit into `MAX_STACKED` numbers, there are
    some of each width (`ALIKE`), clients take about equally many
    steps, and the model can be stacked                             vectorised
    otherwise, on a GPU                                             cuda
    the run is heavy (`HEAVY_ROUND`, `HEAVY_RUN` multiply-adds) and
    there are cores for it                                          processes
    otherwise                                                       serial
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from fedwidth.core.cost import cost
from fedwidth.devices.capacity import Capacities
from fedwidth.engines.limits import why_not
from fedwidth.engines.sending import cannot_import, cannot_send, cannot_share
from fedwidth.engines.stacks.pool import couples_samples
from fedwidth.engines.stacks.trial import try_stack
from fedwidth.training.client import Trainer

SMALL_STEP = {"cpu": 1e6, "cuda": 2.5e9}
"""Multiply-adds of a forward pass of one batch, up to which calling PyTorch (on a GPU: launching kernels) costs more
than the arithmetic."""

MAX_STACKED = {"cpu": 5e6, "cuda": 2**28}
"""Parameters of all clients of a round; beyond that memory is what takes the time."""

ALIKE = {"cpu": 1, "cuda": 6}
"""Clients of one width in a round from which on stacking pays; a GPU trains fewer side by side as they are."""

HEAVY_ROUND, HEAVY_RUN = 1e9, 2e11
"""Multiply-adds from which on workers repay what sending to them costs, and what starting them does."""


@dataclass(frozen=True)
class Choice:
    """An engine's name and the reason for it."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"engine: {self.name} ({self.reason})"


def choose_engine(trainer: Trainer) -> Choice:
    """The engine the settings name, or the one 'auto' takes for them."""
    settings = trainer.settings
    if settings.engine != "auto":
        return Choice(settings.engine, "as set")
    work = Work.of(trainer)
    reason = why_not_stack(trainer, work)
    if reason is None:
        return Choice("vectorised", f"a step of a client is small: {work.step:,.0f} multiply-adds")
    if trainer.device.type == "cuda":
        return Choice("cuda", f"clients side by side on the GPU; {reason}")
    workers = count_workers(trainer)
    heavy = work.round >= HEAVY_ROUND and work.round * settings.rounds >= HEAVY_RUN
    if not heavy:
        return Choice("serial", reason)
    if workers == 1 or cannot_send(trainer.model) is not None:
        return Choice("serial", "no second core or the model cannot be sent to one")
    if (lacking := cannot_share(trainer) or cannot_import(trainer)) is not None:
        return Choice("serial", lacking)
    return Choice("processes", f"{work.round:.1e} multiply-adds a round, {workers} workers")


@dataclass(frozen=True)
class Work:
    """What training costs, averaged over the capacities clients may have."""

    parameters: float
    """Of one client."""
    step: float
    """Multiply-adds of the forward pass of one batch."""
    round: float
    """Multiply-adds of a round, gradients included."""
    widths: int
    """That clients may have."""

    @classmethod
    def of(cls, trainer: Trainer) -> Work:
        """Counted on the trainer's model."""
        training, devices = trainer.settings.training, trainer.settings.devices
        mix = Capacities.parse(devices.capacities)
        costs = cost(trainer.model, trainer.plan, trainer.data.example(), mix.values)

        def mean(numbers: list[float]) -> float:
            return sum(n * weight for n, weight in zip(numbers, mix.weights, strict=True)) / sum(mix.weights)

        macs = mean([c.macs for c in costs])
        samples = training.epochs * float(trainer.partition.sizes.double().mean())
        if training.steps:
            samples = training.steps * training.batch_size
        # A sample costs three forward passes: one forward, and about two for the gradients.
        passes = 3 * macs * samples * devices.per_round
        return cls(
            mean([c.parameters for c in costs]),
            training.batch_size * macs,
            passes,
            sum(weight > 0 for weight in mix.weights),
        )


def why_not_stack(trainer: Trainer, work: Work) -> str | None:
    """Why stacking the clients of a round would not pay or not work, or None."""
    settings, kind = trainer.settings, trainer.device.type
    clients = settings.devices.per_round
    if work.step > SMALL_STEP[kind]:
        return f"a step of a client is large enough to train alone: {work.step:,.0f} multiply-adds"
    if clients == 1:
        return "one client a round"
    if clients < ALIKE[kind] * work.widths:
        return f"{clients} clients a round of {work.widths} width{'s' * (work.widths > 1)} are too few to stack"
    if work.parameters * clients > MAX_STACKED[kind]:
        return f"{clients} clients of {work.parameters:,.0f} parameters are too many to stack"
    sizes = trainer.partition.sizes
    if couples_samples(trainer.model) and int(sizes.min()) < int(sizes.max()):
        return "clients have different numbers of samples, and batch norm leaves no room for missing ones"
    steps = torch.ceil(sizes / settings.training.batch_size)
    if not settings.training.steps and float(steps.double().mean()) < float(steps.max()) / 2:
        return "some clients take more than twice as many steps as most"
    return why_not(trainer) or try_stack(trainer)


def count_workers(trainer: Trainer) -> int:
    """Worker processes the settings allow: one per core unless they say otherwise, and no more than clients."""
    return min(trainer.settings.workers or count_cores(), trainer.settings.devices.per_round)


def count_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
