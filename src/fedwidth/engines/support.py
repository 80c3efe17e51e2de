"""Which engine trains a run, and why not: the one answer for engines, pages and tests."""

from __future__ import annotations

from fedwidth.engines.limits import TRIALS, why_not_train
from fedwidth.engines.processes.startup import networks_of, why_not_import, why_not_send, why_not_share
from fedwidth.methods import Method
from fedwidth.training.client import Trainer

ENGINES = ("serial", "processes", "vectorised", "cuda", "ray", "flower")
ELSEWHERE = {"ray": "Ray's workers", "flower": "Flower's devices"}
"""Who trains on other machines."""


def why_not_support(trainer: Trainer, engine: str) -> str | None:
    """The reason why an engine cannot train what the trainer holds, or None where it can.

    Where a flat engine cannot, the serial one trains instead; Ray's workers and Flower's devices can always train one
    client at a time.
    """
    if engine in TRIALS:
        return why_not_train(trainer, engine)
    if engine == "processes":
        return why_not_send(networks_of(trainer)) or why_not_share(trainer) or why_not_import(trainer)
    adapted = bool(trainer.plan.adapters)
    return why_not_elsewhere(trainer.method, engine, adapted=adapted) if engine in ELSEWHERE else None


def why_not_elsewhere(method: Method, engine: str, *, adapted: bool = False) -> str | None:
    """The reason why a method's sub-models cannot go to other machines, or None where they can.

    `adapted` says that the model has adapters.
    """
    if method.adapters or adapted:
        return f"{method.title} trains adapters, which {ELSEWHERE[engine]} do not take yet"
    if method.slices:
        return None
    return f"{method.title} sends other parts than slices, which {ELSEWHERE[engine]} do not take"
