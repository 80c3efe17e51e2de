"""Engines: ways to train the clients of a round, all with the same results."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from fedwidth.engines.choice import Choice, choose_engine, count_workers
from fedwidth.engines.flat.engine import FlatEngine
from fedwidth.engines.flat.trainers import Crew
from fedwidth.engines.limits import why_not
from fedwidth.engines.processes import ProcessEngine
from fedwidth.engines.serial import SerialEngine
from fedwidth.engines.slots.making import try_capture
from fedwidth.engines.slots.pool import Slots
from fedwidth.engines.stacks.pool import Stacks
from fedwidth.engines.stacks.trial import try_stack
from fedwidth.errors import FellBack
from fedwidth.training.client import Trainer
from fedwidth.training.rounds import Engine

__all__ = ["Choice", "FlatEngine", "ProcessEngine", "SerialEngine", "choose_engine", "make_engine"]

CREWS: dict[str, Callable[[Trainer], Crew]] = {"cuda": Slots, "vectorised": Stacks}


def make_engine(trainer: Trainer) -> Engine:
    """The engine the settings name; for 'auto' the one `choose_engine` takes."""
    wanted = choose_engine(trainer).name
    if wanted in CREWS:
        stacked = wanted == "vectorised"
        reason = why_not(trainer, stacked=stacked) or (try_stack if stacked else try_capture)(trainer)
        if reason is None:
            return FlatEngine(trainer, CREWS[wanted](trainer), averages=True)
        warnings.warn(f"the {wanted} engine falls back to one client at a time: {reason}", FellBack, stacklevel=2)
    if wanted == "ray":
        from fedwidth.engines.ray.engine import RayEngine

        return RayEngine(trainer)
    return ProcessEngine(trainer, count_workers(trainer)) if wanted == "processes" else SerialEngine(trainer)
