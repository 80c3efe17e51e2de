"""Several runs at a time, each in a process of its own; every run gives the bits it gives alone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from threading import Thread
from typing import Any

from fedwidth.cli.runs.planned_run import PlannedRun
from fedwidth.cli.runs.progress import ProgressDisplay
from fedwidth.cli.runs.training import Line, RunOptions, Summary, run_one
from fedwidth.engines import choose_engine
from fedwidth.engines.choice import count_cores
from fedwidth.engines.processes.shared_memory import count_shared
from fedwidth.engines.processes.startup import script_hidden, worker_context
from fedwidth.engines.processes.worker import leave_with_parent
from fedwidth.errors import ClientError
from fedwidth.experiment import Experiment, Stopped
from fedwidth.run.cache import Cache
from fedwidth.run.checkpoint import rounds_done
from fedwidth.settings import Settings

MIN_ROUNDS = 100
"""Rounds of all runs together below which starting processes takes longer than they save."""
SHARE_OF_MEMORY = 0.25
"""The share of the machine's memory that copies of the data may take: each process has its own."""
EVERY = 0.1
"""Seconds between looks at what the processes have to say."""

Outcome = tuple[Summary, Line]

_cache = Cache()
_said: Any = None
_stop: Any = None
"""Of a process that trains: the data it has loaded, the queue it reports to, and whether it is to stop."""


def choose_number(
    asked: int,
    runs: Sequence[PlannedRun],
    make: Callable[[Settings], Experiment],
    *,
    resume: bool,
    cores: int | None = None,
    memory: int | None = None,
) -> int:
    """How many runs at a time: as asked for, else one for each core where that is faster and memory allows it.

    Cores and bytes of memory are this machine's where they are not given.
    """
    cores, memory = cores or count_cores(), count_memory() if memory is None else memory
    if asked or len(runs) < 2:
        return min(asked, len(runs))
    left = sum(run.settings.rounds - (rounds_done(run.folder) if resume else 0) for run in runs)
    if left < MIN_ROUNDS or cores == 1 or any(run.settings.device != "cpu" for run in runs):
        return 1
    first = make(runs[0].settings)
    if choose_engine(first.trainer).name in ("processes", "ray"):  # a run takes all cores as it is
        return 1
    most = int(SHARE_OF_MEMORY * memory / max(1, count_shared(first.data))) if memory else len(runs)
    return max(1, min(cores, len(runs), most))


def run_side_by_side(
    runs: Sequence[tuple[int, PlannedRun]],
    at_a_time: int,
    options: RunOptions,
    display: ProgressDisplay,
    *,
    stop: Callable[[], bool],
) -> dict[int, Summary]:
    """Train numbered runs, so many at a time. Where one fails, the others end their round and save it."""
    # Stacked clients import hundreds of modules of PyTorch's compiler.
    context = worker_context("fedwidth.cli.runs.side_by_side", "torch._dynamo")
    said, halt = context.Queue(), context.Event()
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(at_a_time, mp_context=context, initializer=_begin, initargs=(said, halt))
    running: dict[Future[Outcome], int] = {}
    titles = {number: run.title for number, run in runs}
    tell = {number: display.update(number) for number in titles}
    failure: BaseException | None = None
    found: dict[int, Summary] = {}
    try:
        for number, run in runs:
            with script_hidden(True):  # nothing that is sent is defined in a script
                future = pool.submit(_run, number, run, options.resume, options.overwrite, options.track)
            running[future] = number
        while running:
            if stop() or failure:
                halt.set()
            done, _ = wait(running, timeout=EVERY, return_when=FIRST_COMPLETED)
            _listen(said, options, display, tell)
            for future in done:
                number = running.pop(future)
                try:
                    found[number], last = future.result()
                    display.finish(number, last)
                except BrokenProcessPool as error:
                    failure = failure or _lost(titles[number], error)
                except Exception as error:
                    failure = error if failure is None or isinstance(failure, Stopped) else failure
        if failure:
            raise failure
        return found
    except BaseException:
        if running:  # a second Ctrl-C
            for child in set(multiprocessing.active_children()) - before:
                child.kill()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        _listen(said, options, display, tell)
        said.close()


def _lost(title: str, error: BrokenProcessPool) -> ClientError:
    lost = ClientError(
        f"a process that trained runs was killed, or out of memory ('{title}' is not finished); what was saved goes on"
        " with --resume, and --jobs 1 takes less memory"
    )
    lost.__cause__ = error
    return lost


def _listen(said: Any, options: RunOptions, display: ProgressDisplay, tell: dict[int, Callable[[Line], None]]) -> None:
    """Pass on what the processes have said since."""
    while not said.empty():
        number, kind, content = said.get()
        if kind == "starts":
            display.start(number)
        elif kind == "line":
            options.first(content)
            tell[number](content)
        elif kind == "warns":
            warnings.warn(content, stacklevel=2)
        else:
            options.say(content)


def _begin(said: Any, stop: Any) -> None:
    """Prepare a process that trains: keep the queue to report to, and the event that asks it to stop."""
    global _said, _stop
    # Ctrl-C reaches every process of a terminal, but only the main one decides what happens.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=leave_with_parent, daemon=True).start()
    _said, _stop = said, stop


def _run(number: int, run: PlannedRun, resume: bool, overwrite: bool, track: str) -> Outcome:
    """Train one run, in a process that trains."""
    if _stop.is_set():
        raise Stopped("stopped before its first round")
    _said.put((number, "starts", None))
    warnings.showwarning = lambda message, *_, **__: _said.put((number, "warns", str(message)))
    options = RunOptions(resume, overwrite, track, lambda _: None, lambda text: _said.put((number, "says", text)))
    return run_one(
        run,
        _cache.experiment(run.settings),
        options,
        lambda line: _said.put((number, "line", _numbers(line))),
        stop=_stop.is_set,
    )


def _numbers(line: Line) -> Line:
    """The plain numbers of a line, from which progress is shown: a line may name thousands of clients."""
    return {name: value for name, value in line.items() if isinstance(value, (int, float))}


def count_memory() -> int:
    """Bytes of memory that the machine has; 0 where the system does not say (Windows)."""
    if sys.platform == "win32":
        return 0
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
