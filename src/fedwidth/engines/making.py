"""Making the engine of a run."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from fedwidth.engines.choice import choose_engine, count_workers
from fedwidth.engines.flat.engine import FlatEngine
from fedwidth.engines.flat.pool import Pool
from fedwidth.engines.limits import why_not_train
from fedwidth.engines.processes.engine import ProcessEngine
from fedwidth.engines.serial import SerialEngine
from fedwidth.engines.slots.pool import SlotPool
from fedwidth.engines.stacks.pool import StackPool
from fedwidth.errors import FellBack
from fedwidth.training.client import Trainer
from fedwidth.training.engine import Engine

POOLS: dict[str, Callable[[Trainer], Pool]] = {"cuda": SlotPool, "vectorised": StackPool}
"""The pool of each flat engine."""


def make_engine(trainer: Trainer) -> Engine:
    """The engine that the settings name; for 'auto' the one `choose_engine` takes.

    A flat engine that cannot train the model is replaced by the serial one, with a warning that says why.
    """
    name = choose_engine(trainer).name
    if name in POOLS:
        reason = why_not_train(trainer, name)
        if reason is None:
            return make_flat(trainer, name, averages_here=True)
        warnings.warn(f"the {name} engine falls back to one client at a time: {reason}", FellBack, stacklevel=2)
    if name == "ray":
        from fedwidth.engines.ray.engine import RayEngine

        return RayEngine(trainer)
    return ProcessEngine(trainer, count_workers(trainer)) if name == "processes" else SerialEngine(trainer)


def make_flat(trainer: Trainer, name: str, *, averages_here: bool) -> FlatEngine:
    """The flat engine of this name; `averages_here` says that its sums are averaged in the same process."""
    return FlatEngine(trainer, POOLS[name](trainer), averages_here=averages_here)
