"""Several runs as one batch: they advance in step, and each writes what it would write alone.

while any run has rounds left:
    choose      every run's sub-models; equal choices are made once
    train       the clients of all runs together (`engines.packed`)
    evaluate    the new states together, equal ones once
    write       every run's metrics and checkpoint
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from fedwidth.core.cohort import CohortSum
from fedwidth.engines.packed.clients import RunRound
from fedwidth.engines.packed.engine import PackedEngine
from fedwidth.experiment import Experiment, Line, Result, Stopped
from fedwidth.gpu import on_gpu
from fedwidth.methods import Memory
from fedwidth.run.lockstep.choices import Choices
from fedwidth.run.lockstep.evaluation import LockstepEvaluation
from fedwidth.run.lockstep.packing import use_packed_engine
from fedwidth.run.recorder import Recorder
from fedwidth.run.start import begin
from fedwidth.training.engine import Report
from fedwidth.training.server.state import Server


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
        pack = PackedEngine([experiment.trainer for experiment in experiments])
        stack.callback(pack.close)
        recorders = [
            stack.enter_context(begin(experiment, folder, resume=resume, overwrite=overwrite, packed=len(experiments)))
            for experiment, folder in zip(experiments, folders or [None] * len(experiments), strict=True)
        ]
        _share_states(recorders, pack)
        evaluation, choices = LockstepEvaluation(experiments), Choices()
        stopping = False
        while not stopping and not all(recorder.ended for recorder in recorders):
            going = [number for number, recorder in enumerate(recorders) if not recorder.ended]
            choices = _advance([recorders[number] for number in going], pack, evaluation, choices)
            stopping = stop() and not all(recorder.ended for recorder in recorders)
            for number in going:
                recorders[number].save(always=stopping)
                on_round(number, recorders[number].lines[-1])
        if stopping:
            done = max(recorder.server.round for recorder in recorders)
            raise Stopped(f"stopped after round {done} of {experiments[0].settings.rounds}")
        return [recorder.finish() for recorder in recorders]


def _advance(
    recorders: Sequence[Recorder], pack: PackedEngine, evaluation: LockstepEvaluation, choices: Choices
) -> Choices:
    """One round of all runs; what was chosen for the next one meanwhile."""
    coming = Choices()
    chosen = [choices.choose(recorder) for recorder in recorders]
    rounds = [
        RunRound(recorder.experiment.trainer, recorder.server.state, tasks, recorder.server.round)
        for recorder, tasks in zip(recorders, chosen, strict=True)
        if tasks  # of a run all clients may be excluded or absent
    ]
    trained = iter(pack.run(rounds, lambda: coming.look_ahead(recorders)) if rounds else ())
    closed: dict[object, Server] = {}
    ended: list[tuple[Server, Report]] = []
    for recorder, tasks in zip(recorders, chosen, strict=True):
        if not tasks:
            ended.append((recorder.server.skip(), Report((), ())))
            continue
        sums, report = next(trained)
        key = _closing_key(recorder, sums)
        if key not in closed:
            closed[key] = recorder.experiment.rounds.close(recorder.server, tasks, sums, report)
        ended.append((closed[key], report))
    measured = evaluation.measure([(recorder, server) for recorder, (server, _) in zip(recorders, ended, strict=True)])
    for recorder, (server, report), tasks, found in zip(recorders, ended, chosen, measured, strict=True):
        recorder.record(server, tasks, report, found)
    return coming


def _closing_key(recorder: Recorder, sums: Sequence[CohortSum]) -> object:
    """What the state after a round depends on: equal runs then go on with one state."""
    method, server = recorder.experiment.method, recorder.server
    plain = method.close is None and method.advance is None
    own = () if plain else (id(method.close), id(method.advance), repr(sorted(method.values.items())))
    held = tuple(id(each) for each in (server.memory, server.moments, server.clients) if each)
    rounds = recorder.experiment.rounds
    return id(sums), own, held, rounds.enrolled, id(rounds.public), rounds.server_step


def _share_states(recorders: Sequence[Recorder], pack: PackedEngine) -> None:
    """Let runs whose states are equal, bit for bit, hold one: then equal work is found, also after a resume."""
    known: dict[object, Mapping[str, Tensor]] = {}
    memories: dict[object, Memory] = {}
    for recorder in recorders:
        server = recorder.server
        state = pack.flatten(server.state)
        others = [state.others[name] for name in sorted(state.others)]
        key = tuple(_digest(tensor) for tensor in (state.flat, *others))
        seen = tuple((name, _digest(tensor)) for name, tensor in sorted(server.memory.items()))
        recorder.server = replace(
            server, state=known.setdefault(key, state), memory=memories.setdefault(seen, server.memory)
        )


def _digest(tensor: Tensor) -> bytes:
    return hashlib.blake2b(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()).digest()
