"""Engines: ways to train the clients of a round, all with the same results."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable

from fedwidth.client import Trainer
from fedwidth.cost import cost
from fedwidth.engines.flat_engine import Crew, FlatEngine
from fedwidth.engines.processes import ProcessEngine, cannot_send
from fedwidth.engines.serial import SerialEngine
from fedwidth.engines.slots import Slots, why_not
from fedwidth.engines.stacks import Stacks
from fedwidth.rounds import Engine

__all__ = ["FlatEngine", "ProcessEngine", "SerialEngine", "make_engine"]

CREWS: dict[str, Callable[[Trainer], Crew]] = {"cuda": Slots, "vectorised": Stacks}

WORTH_WORKERS = 5e9
"""Multiply-adds a round below which starting and feeding worker processes costs more than it saves."""


def make_engine(trainer: Trainer) -> Engine:
    """The engine the settings name; 'auto' takes worker processes where rounds are heavy and cores are free."""
    settings = trainer.settings
    workers = min(settings.workers or cores(), settings.devices.per_round)
    wanted = settings.engine
    if wanted == "auto" and trainer.device.type == "cuda":
        wanted = "cuda"
    elif wanted == "auto":
        heavy = workers > 1 and work_of_a_round(trainer) > WORTH_WORKERS and cannot_send(trainer.model) is None
        wanted = "processes" if heavy else "serial"
    if wanted in CREWS:
        reason = why_not(trainer)
        if reason is None:
            return FlatEngine(trainer, CREWS[wanted](trainer))
        warnings.warn(f"the {wanted} engine falls back to one client at a time: {reason}", stacklevel=2)
    return ProcessEngine(trainer, workers) if wanted == "processes" else SerialEngine(trainer)


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def work_of_a_round(trainer: Trainer) -> float:
    """Multiply-adds of a round if every client had the full width: a rough measure."""
    settings = trainer.settings
    full = cost(trainer.model, trainer.plan, trainer.data.example(), [1])[0]
    samples = float(trainer.partition.sizes.double().mean()) * settings.training.epochs
    return 3 * full.macs * samples * settings.devices.per_round
