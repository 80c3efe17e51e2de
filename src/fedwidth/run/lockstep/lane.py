"""Runs that train as one batch and advance in step; several such lanes share a device."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedwidth.core.cohort import CohortSum
from fedwidth.engines.choice import choose_packed
from fedwidth.engines.packed.clients import RunRound
from fedwidth.engines.packed.engine import PackedEngine
from fedwidth.experiment import Experiment
from fedwidth.methods import Memory, Task
from fedwidth.run.lockstep.choices import Choices
from fedwidth.run.lockstep.evaluation import LockstepEvaluation
from fedwidth.run.recorder import Recorder
from fedwidth.training.engine import Report, RoundResult
from fedwidth.training.server.state import Server

MAX_LANES = 3
"""Lanes that share a GPU: while the processor ends the round of one, the clients of the others train."""


def lanes_of(experiments: Sequence[Experiment]) -> list[list[int]]:
    """The numbers of the runs in each lane.

    Clients that are stacked train all at once, so they need one lane. In slots they train side by side anyway. Runs
    with one seed and one way to train may do the same work, which only a lane finds out, so they stay together.
    """
    if choose_packed(experiments[0].trainer) != "cuda":
        return [list(range(len(experiments)))]
    settings = [experiment.settings for experiment in experiments]
    kinds = [repr((each.seed, each.training, each.server)) for each in settings]
    distinct = list(dict.fromkeys(kinds))
    lanes: list[list[int]] = [[] for _ in distinct[:MAX_LANES]]
    for number, kind in enumerate(kinds):
        lanes[distinct.index(kind) % len(lanes)].append(number)
    return lanes


class Lane:
    """Several runs that advance in step."""

    def __init__(self, numbers: Sequence[int], recorders: Sequence[Recorder], pack: PackedEngine) -> None:
        """`numbers` are those of the runs among all lanes'."""
        self.runs = dict(zip(numbers, recorders, strict=True))
        self.pack = pack
        self.evaluation = LockstepEvaluation([recorder.experiment for recorder in recorders])
        self._choices = Choices()
        self._going: list[tuple[Recorder, list[Task]]] = []
        """The runs whose round has begun, each with its tasks."""
        self._results: Callable[[], Sequence[RoundResult]] = tuple
        share_states(recorders, pack)

    @property
    def ended(self) -> bool:
        """Whether all rounds of all runs are done."""
        return all(recorder.ended for recorder in self.runs.values())

    def begin(self) -> None:
        """Begin the next round of every run that has one, and choose the sub-models of the one after it."""
        recorders = [recorder for recorder in self.runs.values() if not recorder.ended]
        self._going = [(recorder, self._choices.choose(recorder)) for recorder in recorders]
        self._choices = coming = Choices()
        rounds = [
            RunRound(recorder.experiment.trainer, recorder.server.state, tasks, recorder.server.round)
            for recorder, tasks in self._going
            if tasks  # of a run all clients may be excluded or absent
        ]
        self._results = self.pack.start(rounds, lambda: coming.look_ahead(recorders)) if rounds else tuple

    def end(self) -> list[int]:
        """End the round: average, evaluate and record it; the numbers of the runs that had one."""
        going, self._going = self._going, []
        results, self._results = self._results, tuple  # which holds the states of the round, and goes with it
        trained = iter(results())
        del results
        closed: dict[object, Server] = {}
        ended: list[tuple[Server, Report]] = []
        for recorder, tasks in going:
            if not tasks:
                ended.append((recorder.server.skip(), Report((), ())))
                continue
            sums, report = next(trained)
            key = _closing_key(recorder, sums)
            if key not in closed:
                closed[key] = recorder.experiment.rounds.close(recorder.server, tasks, sums, report)
            ended.append((closed[key], report))
        pairs = [(recorder, server) for (recorder, _), (server, _) in zip(going, ended, strict=True)]
        measured = self.evaluation.measure(pairs)
        for (recorder, tasks), (server, report), found in zip(going, ended, measured, strict=True):
            recorder.record(server, tasks, report, found)
        mine = [recorder for recorder, _ in going]
        return [number for number, recorder in self.runs.items() if recorder in mine]


def _closing_key(recorder: Recorder, sums: Sequence[CohortSum]) -> object:
    """What the state after a round depends on: equal runs then go on with one state."""
    method, server = recorder.experiment.method, recorder.server
    plain = method.close is None and method.advance is None
    own = () if plain else (id(method.close), id(method.advance), repr(sorted(method.values.items())))
    held = tuple(id(each) for each in (server.memory, server.moments, server.clients) if each)
    rounds = recorder.experiment.rounds
    return id(sums), own, held, rounds.enrolled, id(rounds.public), rounds.server_step


def share_states(recorders: Sequence[Recorder], pack: PackedEngine) -> None:
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
