"""Runs to interrupt while they are being saved, and what holds or fails a save."""

from __future__ import annotations

import threading

from fedwidth.experiment import Experiment
from fedwidth.run.cache import Cache
from fedwidth.run.saving import Saver
from small_runs import small


class Killed(BaseException):
    """Ends a run in the middle of nowhere, as a kill does."""


def experiment(*changes):
    return Experiment(small("rounds=5", *changes))


def pack():
    """Two runs to train as one batch."""
    cache = Cache()
    return [cache.experiment(small("rounds=5", "engine=vectorised", f"seed={seed}")) for seed in (1, 2)]


def stop_after(rounds):
    """What to run with to be stopped after so many rounds."""
    done = []
    return {"on_round": done.append, "stop": lambda: len(done) == rounds - 1}


def raising(error, after):
    """To be called after each round: that one is the last."""

    def call(line):
        if line["round"] == after:
            raise error

    return call


def due_after(patch, *rounds):
    """Saves are due after these rounds, whatever the time."""
    patch.setattr(Saver, "is_due", lambda _, round: round in rounds)


def beside():
    """Whether this is a thread that saves."""
    return threading.current_thread().name.startswith("save ")


def held(patch, owner, name, *, call=1):
    """Hold the so many-th call of a function by a thread that saves; returns what says it is there, and frees it."""
    real, calls = getattr(owner, name), []
    reached, free = threading.Event(), threading.Event()

    def hold(*given, **options):
        if beside():
            calls.append(name)
            if len(calls) == call:
                reached.set()
                assert free.wait(120)
        return real(*given, **options)

    patch.setattr(owner, name, hold)
    return reached, free
