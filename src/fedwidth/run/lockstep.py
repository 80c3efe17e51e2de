"""Several runs as one batch: they advance in step, and each writes what it would write alone.

while any run has rounds left:
    choose      every run's sub-models; equal choices are made once
    train       the clients of all runs together (`engines.packed`)
    evaluate    the new states together, equal ones once
    write       every run's metrics and checkpoint
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedwidth.config.influence import by_key
from fedwidth.core.cohort import CohortSum
from fedwidth.data import Partition
from fedwidth.engines.packed.clients import RunRound
from fedwidth.engines.packed.engine import Pack
from fedwidth.engines.packed.limits import SHARED, in_slots
from fedwidth.errors import OptionError
from fedwidth.evaluation.packed import PackedEvaluation, stack_states
from fedwidth.experiment import Experiment, Line, Measured, Recorder, Result, Stopped
from fedwidth.methods import Memory, Task
from fedwidth.models.static_norm import norms_of
from fedwidth.run.start import begin
from fedwidth.settings import Settings
from fedwidth.training.client import Trainer
from fedwidth.training.gpu import on_device
from fedwidth.training.rounds import Report
from fedwidth.training.server import Server

ALIKE = (
    *("rounds", "devices.capacities", "engine", "device", "precision", "data.name", "data.root", "data.options"),
    *(f"training.{name}" for name in SHARED),
)
"""Settings that runs of one pack have in common, besides those of the model."""


def run_together(
    experiments: Sequence[Experiment],
    places: Sequence[Path | None] | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    on_round: Callable[[int, Line], None] = lambda *_: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Result]:
    """Run all to their last round, as `Experiment.run` does each, training as one batch.

    They must have one model, one data set object and one way of training (on a GPU give the others the first one's
    `data`, which is there already, or make all with one `Shelf`); seeds, methods, partitions, capacities,
    learning rates and numbers of rounds may differ. `on_round(number, line)` is called for every round of every run.
    """
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        stack.enter_context(on_device(experiments[0].device))
        settle_engine(experiments)
        pack = Pack([experiment.trainer for experiment in experiments])
        stack.callback(pack.close)
        recorders = [
            stack.enter_context(begin(experiment, place, resume=resume, overwrite=overwrite, packed=len(experiments)))
            for experiment, place in zip(experiments, places or [None] * len(experiments), strict=True)
        ]
        _share_states(recorders, pack)
        judge, choices = _Judge(experiments), _Choices()
        stopping = False
        while not stopping and not all(recorder.ended for recorder in recorders):
            going = [number for number, recorder in enumerate(recorders) if not recorder.ended]
            choices = _advance([recorders[number] for number in going], pack, judge, choices)
            stopping = stop() and not all(recorder.ended for recorder in recorders)
            for number in going:
                recorders[number].save(always=stopping)
                on_round(number, recorders[number].lines[-1])
        if stopping:
            done = max(recorder.server.round for recorder in recorders)
            raise Stopped(f"stopped after round {done} of {experiments[0].settings.rounds}")
        return [recorder.finish() for recorder in recorders]


def _advance(recorders: Sequence[Recorder], pack: Pack, judge: _Judge, choices: _Choices) -> _Choices:
    """One round of all runs; what was chosen for the next one meanwhile."""
    coming = _Choices()
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
    measured = judge.measure([(recorder, server) for recorder, (server, _) in zip(recorders, ended, strict=True)])
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


class _Choices:
    """The sub-models of a round: runs that differ only in what does not matter to the choice share it."""

    def __init__(self) -> None:
        self._cohorts: dict[object, list[tuple[int, float]]] = {}
        self._known: dict[object, list[Task]] = {}

    def look_ahead(self, recorders: Sequence[Recorder]) -> list[tuple[Trainer, list[Task], int]]:
        """The next round of the runs that have one, as far as it does not depend on this one."""
        found = []
        for recorder in recorders:
            round = recorder.server.round + 1
            if round < recorder.experiment.settings.rounds and not recorder.experiment.method.reads:
                found.append((recorder.experiment.trainer, self.choose(recorder, round), round))
        return found

    def choose(self, recorder: Recorder, round: int | None = None) -> list[Task]:
        """The tasks of a run's round."""
        experiment, server = recorder.experiment, recorder.server
        round = server.round if round is None else round
        method, seed, devices = experiment.method, experiment.settings.seed, experiment.settings.devices
        cohort = (seed, round, len(experiment.partition), experiment.capacities, repr(devices))
        if cohort not in self._cohorts:
            self._cohorts[cohort] = experiment.cohort(round)
        read = {"memory": server.memory, "state": server.state}
        chosen_by = (id(method.choose), method.collect, repr(method.values))
        key = (cohort, *chosen_by, *(id(read[name]) for name in method.reads))
        if key not in self._known:
            self._known[key] = experiment.rounds.assign(replace(server, round=round), self._cohorts[cohort])
        ready = experiment.rounds.attending(self._known[key], round)
        return experiment.rounds.send(server, ready) if round == server.round else ready


class _Judge:
    """Evaluates the runs' states."""

    def __init__(self, experiments: Sequence[Experiment]) -> None:
        first = experiments[0]
        mask, self.tied = first.settings.training.mask, first.plan.tied
        self.together = None if norms_of(first.model) else PackedEvaluation(first.model, first.data, mask=mask)

    def measure(self, ended: Sequence[tuple[Recorder, Server]]) -> list[Measured | None]:
        """What is measured after a round of every run; None where it is not evaluated."""
        due = [recorder.experiment.evaluator.is_due(server.round) for recorder, server in ended]
        if self.together is None:
            return [
                recorder.experiment.evaluator.measure(server, before=recorder.server) if is_due else None
                for (recorder, server), is_due in zip(ended, due, strict=True)
            ]
        states = {id(server.state): server.state for (_, server), is_due in zip(ended, due, strict=True) if is_due}
        if not states:
            return [None] * len(ended)
        rows = dict(zip(states, range(len(states)), strict=True))
        stacked = stack_states(list(states.values()), self.tied)
        owed = [pair for pair, is_due in zip(ended, due, strict=True) if is_due]
        found = self._scores(stacked, rows, owed)
        return [
            self._describe(recorder, server, found) if is_due else None
            for (recorder, server), is_due in zip(ended, due, strict=True)
        ]

    def _scores(
        self, stacked: Mapping[str, Tensor], rows: Mapping[int, int], ended: Sequence[tuple[Recorder, Server]]
    ) -> dict[tuple[str, int, int], Any]:
        """Scores by (kind, partition, state), of each kind for the runs that ask for it; partition by partition."""
        assert self.together is not None
        wanted: dict[tuple[str, int], tuple[Any, dict[int, int]]] = {}
        for recorder, server in ended:
            experiment = recorder.experiment
            for kind, key in _kinds(experiment):
                mine = wanted.setdefault((kind, key), (experiment.partition, {}))[1]
                mine[id(server.state)] = rows[id(server.state)]
        found = {}
        for (kind, key), (partition, mine) in wanted.items():
            chosen = torch.tensor(list(mine.values()))
            part = stacked
            if len(chosen) < len(rows):
                part = {name: tensor[chosen.to(tensor.device)] for name, tensor in stacked.items()}
            last = any(recorder.experiment.evaluator.is_last(server.round) for recorder, server in ended)
            for state, scores in zip(mine, self._score(kind, part, partition, by_class=last), strict=True):
                found[kind, key, state] = scores
        return found

    def _score(self, kind: str, states: Mapping[str, Tensor], partition: Partition, *, by_class: bool) -> Sequence[Any]:
        """One kind of score of every state."""
        assert self.together is not None
        data = self.together.data
        if kind == "local":
            return self.together.local(states, partition)
        if kind == "validation":
            return self.together.scores(states, data.train, partition.validation, by_class=by_class)
        return self.together.scores(states, data.test, by_class=by_class)

    @staticmethod
    def _describe(recorder: Recorder, server: Server, found: Mapping[tuple[str, int, int], Any]) -> Measured:
        experiment = recorder.experiment
        own = {kind: found[kind, key, id(server.state)] for kind, key in _kinds(experiment)}
        local = own.pop("local", None)
        return experiment.evaluator.describe(server, own, local, before=recorder.server)  # which has not moved on yet


def _kinds(experiment: Experiment) -> list[tuple[str, int]]:
    """The kinds of scores a run asks for, each with what it depends on beside the state: its partition, or nothing."""
    partition = experiment.partition
    asked = {"global": experiment.settings.evaluation.test, "validation": len(partition.validation) > 0}
    asked["local"] = experiment.evaluator.is_local
    return [(kind, 0 if kind == "global" else id(partition)) for kind, wanted in asked.items() if wanted]


def _share_states(recorders: Sequence[Recorder], pack: Pack) -> None:
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


def settle_engine(experiments: Sequence[Experiment]) -> None:
    """Give runs that leave the choice the engine they train with as one batch."""
    engine = "cuda" if in_slots(experiments[0].trainer) else "vectorised"
    for experiment in experiments:
        experiment.use_engine(engine)


def explain_engine(experiment: Experiment) -> str:
    """What a run trains with as part of a batch, and how."""
    if in_slots(experiment.trainer):
        return "cuda (their clients side by side in slots)"
    return "vectorised (their clients stacked by size)"


def check_for_packing(settings: Settings) -> None:
    """Refuse settings that no packed run can have."""
    if settings.engine not in ("auto", "cuda", "vectorised"):
        raise OptionError(f"packed runs need engine auto, vectorised or cuda, not {settings.engine}")


def group_for_packing(all_settings: Sequence[Settings]) -> list[list[int]]:
    """Numbers of the runs that go well together: of one length, and with clients of the same capacities.

    They need not be one experiment (`config.influence` says what is): a pack shares a model, data and a way to train.
    """
    groups: dict[str, list[int]] = {}
    for number, settings in enumerate(all_settings):
        found = by_key(asdict(settings))
        alike = {name: value for name, value in found.items() if name in ALIKE or name.startswith("model.")}
        groups.setdefault(json.dumps(alike, sort_keys=True), []).append(number)
    return list(groups.values())
