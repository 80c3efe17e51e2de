"""Runs to interrupt while they are being saved, and what holds or fails a save."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading

import pytest

from fedwidth.experiment import Experiment
from fedwidth.run import folder
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


def run_until_killed(out, moment, saves):
    """Run, be saved after some rounds, and be killed by SIGKILL after the fourth round of five.

    The kill finds the last save at a `moment`: at this call of the operating system for the metrics or the checkpoint,
    or, where it is none, all saves at their end.
    """
    name, _, file = moment.partition(" ")
    due_after(pytest.MonkeyPatch(), *saves)
    # A save makes the metrics last, then the checkpoint under its temporary name, and gives it its own.
    call = {"fsync metrics": 2 * len(saves) - 1, "fsync checkpoint": 2 * len(saves), "replace checkpoint": len(saves)}
    reached, _ = held(pytest.MonkeyPatch(), os, name, call=call[moment]) if file else (None, None)

    def after(line):
        if line["round"] == 4:
            if reached:
                assert reached.wait(120)
            for thread in threading.enumerate() if not reached else ():
                if thread.name.startswith("save "):
                    thread.join()
            os.kill(os.getpid(), signal.SIGKILL)

    experiment().run(out, on_round=after)


def kill_run(out, moment, saves):
    """`run_until_killed` in a process of its own, forked from one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["saving_runs"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))  # for what it imports
        process = context.Process(target=run_until_killed, args=(out, moment, saves))
        process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert [line["round"] for line in folder.read_metrics(out)] == [1, 2, 3, 4]
