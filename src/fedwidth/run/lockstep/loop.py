"""Several runs as one batch: they advance in step, and each writes what it would write alone.

while any run has rounds left, for each lane:
    end         average and evaluate the round that its clients have trained, and write it down
    begin       choose the next sub-models and let them train, while the other lanes have their turn

A lane (`lane`) is a number of runs that train together. Where there are several, the GPU is busy with the clients of
the others while the processor is busy with one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from fedwidth.engines.packed.engine import PackedEngine
from fedwidth.engines.packed.limits import check_pack
from fedwidth.experiment import Experiment, Line, Result, Stopped
from fedwidth.gpu import on_gpu
from fedwidth.run.lockstep.lane import Lane, lanes_of
from fedwidth.run.lockstep.packing import use_packed_engine
from fedwidth.run.start import begin


def run_in_lockstep(
    experiments: Sequence[Experiment],
    folders: Sequence[Path | None] | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    on_round: Callable[[int, Line], None] = lambda *_: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Result]:
    """Run all to their last round, as `Experiment.run` does each, training as one batch.

    They must have one model, one data set object and one way of training (on a GPU give the others the first one's
    `data`, which is there already, or make all with one `Cache`); seeds, methods, partitions, capacities,
    learning rates and numbers of rounds may differ. `on_round(number, line)` is called for every round of every run.
    """
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        stack.enter_context(on_gpu(experiments[0].device))
        use_packed_engine(experiments)
        check_pack([experiment.trainer for experiment in experiments])
        numbers = lanes_of(experiments)
        packs = [PackedEngine([experiments[number].trainer for number in lane]) for lane in numbers]
        for pack in packs:
            stack.callback(pack.close)
        recorders = [
            stack.enter_context(begin(experiment, folder, resume=resume, overwrite=overwrite, packed=len(experiments)))
            for experiment, folder in zip(experiments, folders or [None] * len(experiments), strict=True)
        ]
        lanes = [
            Lane(lane, [recorders[number] for number in lane], pack) for lane, pack in zip(numbers, packs, strict=True)
        ]
        _advance(lanes, on_round, stop)
        if not all(recorder.ended for recorder in recorders):
            done = max(recorder.server.round for recorder in recorders)
            raise Stopped(f"stopped after round {done} of {experiments[0].settings.rounds}")
        return [recorder.finish() for recorder in recorders]


def _advance(lanes: Sequence[Lane], on_round: Callable[[int, Line], None], stop: Callable[[], bool]) -> None:
    """Train all lanes to their last round, or until they are to stop: then each ends the round that it trains."""
    stopping = False
    going = [lane for lane in lanes if not lane.ended]
    for lane in going:
        lane.begin()
    while going:
        for lane in going:
            numbers = lane.end()
            stopping = stop() if lane is going[0] else stopping
            if not stopping and not lane.ended:
                lane.begin()
            for number in numbers:
                recorder = lane.runs[number]
                recorder.save(always=stopping)
                on_round(number, recorder.lines[-1])
        going = [] if stopping else [lane for lane in going if not lane.ended]
