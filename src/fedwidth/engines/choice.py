"""Which engine trains, and why: for a run alone, for runs that train as one batch, and for the workers of Ray.

Equal settings must give equal bits on every machine. Serial and processes agree to the last bit, so between those two
the number of cores may decide; stacked products sum in another order, so whether clients are stacked depends on the
settings, the model and the data alone. So `engine = "auto"` takes

    a step of one client is small (`SMALL_STEP` multiply-adds), the
    round's sub-models fit into `MAX_STACKED` numbers, there are
    some of each width (`MIN_ALIKE`), clients take about equally many
    steps, and the model can be stacked                             vectorised
    otherwise, on a GPU                                             cuda
    the run is heavy (`HEAVY_ROUND`, `HEAVY_RUN` multiply-adds) and
    there are cores for it                                          processes
    otherwise                                                       serial
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, replace

import torch

from fedwidth.core.architectures import held_at
from fedwidth.devices.capacity import Capacities
from fedwidth.engines.limits import TRIALS, why_not_by_rule, why_not_train
from fedwidth.engines.processes.startup import networks_of, why_not_import, why_not_send, why_not_share
from fedwidth.engines.stacks.pool import why_coupled
from fedwidth.engines.support import why_not_support
from fedwidth.errors import OptionError
from fedwidth.training.client import Trainer

SMALL_STEP = {"cpu": 1e6, "cuda": 2.5e9}
"""The multiply-adds of a forward pass of one batch up to which calling PyTorch (on a GPU: launching kernels) costs more
than the arithmetic."""

SMALL_PACKED_STEP = 5e9
"""The same on a GPU for runs that train as one batch, whose stacks are fuller."""

MAX_STACKED = {"cpu": 5e6, "cuda": 2**28}
"""The number of parameters of all clients of a round beyond which memory is what takes the time."""

MIN_ALIKE = {"cpu": 1, "cuda": 6}
"""The number of clients of one width in a round from which on stacking pays; a GPU trains fewer side by side."""

HEAVY_ROUND, HEAVY_RUN = 1e9, 2e11
"""The multiply-adds of a round and of a run from which on workers are worth what sending and starting them costs."""


@dataclass(frozen=True)
class Choice:
    """An engine's name and the reason for it."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"engine: {self.name} ({self.reason})"


def choose_engine(trainer: Trainer) -> Choice:
    """The engine of a run alone: the one the settings name, or the one 'auto' takes for them."""
    settings = trainer.settings
    if settings.engine != "auto":
        return Choice(settings.engine, "as set")
    training = TrainingCost.of(trainer)
    reason = why_not_stack(trainer, training)
    if reason is None:
        return Choice("vectorised", f"a step of a client is small: {training.step:,.0f} multiply-adds")
    if trainer.device.type == "cuda":
        return Choice("cuda", f"clients side by side on the GPU; {reason}")
    workers = count_workers(trainer)
    heavy = training.round >= HEAVY_ROUND and training.round * settings.rounds >= HEAVY_RUN
    if not heavy:
        return Choice("serial", reason)
    if workers == 1 or why_not_send(networks_of(trainer)) is not None:
        return Choice("serial", "no second core or the model cannot be sent to one")
    if (lacking := why_not_share(trainer) or why_not_import(trainer)) is not None:
        return Choice("serial", lacking)
    return Choice("processes", f"{training.round:.1e} multiply-adds a round, {workers} workers")


def choose_packed(trainer: Trainer) -> str:
    """The engine of runs that train as one batch: as the settings say, or slots on a GPU where steps are large."""
    if trainer.settings.engine != "auto":
        return "cuda" if trainer.settings.engine == "cuda" else "vectorised"
    large = trainer.device.type == "cuda" and TrainingCost.of(trainer).step > SMALL_PACKED_STEP
    return "cuda" if large else "vectorised"


def choose_for_ray(trainer: Trainer) -> tuple[str, str]:
    """The engine inside the workers of Ray, the same in all, and the kind of device it trains on."""
    settings = trainer.settings
    if (reason := why_not_support(trainer, "ray")) is not None:
        raise OptionError(reason)
    device = "cuda" if settings.ray.gpus else "cpu"
    if settings.ray.gpus > 1:
        raise OptionError(f"ray.gpus is {settings.ray.gpus:g}, but a worker trains on one GPU: give at most 1")
    if trainer.device.type == "cuda" and not settings.ray.gpus:
        raise OptionError("device is 'cuda', but ray.gpus is 0: set the share of a GPU that each worker holds, e.g. 1")
    wanted = replace(settings, engine=settings.ray.engine, device=device)
    there = replace(trainer, settings=wanted, device=torch.device(device))
    # On GPUs no trial: the driver may have none, and its machine must not decide.
    automatic = "cuda" if settings.ray.gpus and settings.ray.engine == "auto" else ""
    name = automatic or choose_engine(there).name
    if name in ("serial", "processes"):
        return "serial", device
    # What a GPU cannot do is asked of the workers' device; stacking is tried here, where there may be none.
    reason = why_not_by_rule(there, name) or (TRIALS[name](trainer) if name == "vectorised" else None)
    if reason is not None:
        warnings.warn(f"Ray's workers train one client at a time, not {name}: {reason}", stacklevel=3)
    return ("serial" if reason else name), device


@dataclass(frozen=True)
class TrainingCost:
    """What training costs, averaged over the capacities that clients may have."""

    parameters: float
    """The number of parameters of one client."""
    step: float
    """The multiply-adds of the forward pass of one batch."""
    round: float
    """The multiply-adds of a round, gradients included."""
    widths: int
    """The number of different widths that clients may have."""

    @classmethod
    def of(cls, trainer: Trainer) -> TrainingCost:
        """The cost, counted on the trainer's model."""
        training, devices = trainer.settings.training, trainer.settings.devices
        mix = Capacities.parse(devices.capacities)
        example, held = trainer.data.example(), [held_at(trainer.method.architectures, each) for each in mix.values]
        costs = [each.cost(trainer.model, trainer.plan, example, capacity=1.0) for each in held]

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


def why_not_stack(trainer: Trainer, training: TrainingCost) -> str | None:
    """The reason why stacking the clients of a round would not pay or not work, or None."""
    settings, kind = trainer.settings, trainer.device.type
    clients = settings.devices.per_round
    if training.step > SMALL_STEP[kind]:
        return f"a step of a client is large enough to train alone: {training.step:,.0f} multiply-adds"
    if clients == 1:
        return "one client a round"
    if clients < MIN_ALIKE[kind] * training.widths:
        return f"{clients} clients a round of {training.widths} width{'s' * (training.widths > 1)} are too few to stack"
    if training.parameters * clients > MAX_STACKED[kind]:
        return f"{clients} clients of {training.parameters:,.0f} parameters are too many to stack"
    sizes = trainer.partition.sizes
    if (reason := why_coupled(trainer)) is not None and int(sizes.min()) < int(sizes.max()):
        return f"clients have different numbers of samples, and {reason}"
    steps = torch.ceil(sizes / settings.training.batch_size)
    if not settings.training.steps and float(steps.double().mean()) < float(steps.max()) / 2:
        return "some clients take more than twice as many steps as most"
    return why_not_train(trainer, "vectorised")


def count_workers(trainer: Trainer) -> int:
    """The number of worker processes: one per core unless the settings say otherwise, and no more than clients."""
    return min(trainer.settings.workers or count_cores(), trainer.settings.devices.per_round)


def count_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
