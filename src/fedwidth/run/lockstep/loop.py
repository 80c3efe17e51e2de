"""Several runs as one batch: they advance in step, and each writes what it would write alone.

while any run has rounds left, for each lane:
    end         average and evaluate the round that its clients have trained, and write it down
    begin       choose the next sub-models and let them train, while the other lanes have their turn

A lane (`lane`) is a number of runs that train together. Where there are several, the GPU is busy with the clients of
the others while the processor is busy with one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from fedwidth.engines.memory import out_of_memory
from fedwidth.engines.packed.engine import PackedEngine
from fedwidth.engines.packed.kept_pools import KeptPools
from fedwidth.engines.packed.limits import check_pack
from fedwidth.experiment import Experiment, Line, Result, Stopped
from fedwidth.gpu import on_gpu
from fedwidth.run.lockstep.lane import Lane, lanes_of
from fedwidth.run.lockstep.packing import use_packed_engine
from fedwidth.run.recorder import Recorder
from fedwidth.run.start import begin


def run_in_lockstep(
    experiments: Sequence[Experiment],
    folders: Sequence[Path | None] | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    on_round: Callable[[int, Line], None] = lambda *_: None,
    stop: Callable[[], bool] = lambda: False,
    pools: KeptPools | None = None,
) -> list[Result]:
    """Run all to their last round, as `Experiment.run` does each, training as one batch.

    They must have one model, one data set object and one way of training (on a GPU give the others the first one's
    `data`, which is there already, or make all with one `Cache`); seeds, methods, partitions, capacities,
    learning rates and numbers of rounds may differ. `on_round(number, line)` is called for every round of every run.
    `pools` are slots that an earlier pack left, and that this one leaves to the next; whoever made them closes them.
    """
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        stack.enter_context(on_gpu(experiments[0].device))
        lent = KeptPools() if pools is None else pools
        if lent is not pools:
            stack.callback(lent.close)
        use_packed_engine(experiments)
        check_pack([experiment.trainer for experiment in experiments])
        recorders = [
            stack.enter_context(begin(experiment, folder, resume=resume, overwrite=overwrite, packed=len(experiments)))
            for experiment, folder in zip(experiments, folders or [None] * len(experiments), strict=True)
        ]
        numbers = lanes_of(experiments)
        if not _train(numbers, recorders, lent, on_round, stop):
            warnings.warn(
                f"out of memory on {experiments[0].device}: the runs of the pack go on in one lane", stacklevel=2
            )
            lent.close()
            _train([list(range(len(recorders)))], recorders, lent, on_round, stop)
        if lent is not pools:
            lent.close()  # what follows needs memory, too
        if not all(recorder.ended for recorder in recorders):
            done = max(recorder.server.round for recorder in recorders)
            raise Stopped(f"stopped after round {done} of {experiments[0].settings.rounds}")
        return [recorder.finish() for recorder in recorders]


def _train(
    numbers: Sequence[Sequence[int]],
    recorders: Sequence[Recorder],
    pools: KeptPools,
    on_round: Callable[[int, Line], None],
    stop: Callable[[], bool],
) -> bool:
    """Train the runs in these lanes; False if the device has no memory for all of them at once.

    Then the rounds that were under way are dropped. Nothing of them counts yet, so they can begin again.
    """
    try:
        with ExitStack() as stack:
            lanes = []
            for lane in numbers:
                mine = [recorders[number] for number in lane]
                trainers = [recorder.experiment.trainer for recorder in mine]
                pack = PackedEngine(trainers, slots=stack.enter_context(pools.lend(trainers[0])))
                stack.callback(pack.close)
                lanes.append(Lane(lane, mine, pack))
            pools.close()  # those that no lane of this pack has taken
            _advance(lanes, on_round, stop)
    except Exception as error:
        if len(numbers) == 1 or not out_of_memory(error):
            raise
        return False
    return True


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
            try:
                if not stopping and not lane.ended:
                    lane.begin()
            finally:  # the round that has ended is told of, whatever becomes of the next one
                for number in numbers:
                    recorder = lane.runs[number]
                    recorder.save(always=stopping)
                    on_round(number, recorder.lines[-1])
        going = [] if stopping else [lane for lane in going if not lane.ended]
