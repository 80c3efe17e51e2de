"""The evaluation of several runs after a round: their states together, equal ones once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedwidth.data import Partition
from fedwidth.data.records import moved
from fedwidth.evaluation.evaluator import Measured
from fedwidth.evaluation.packed import PackedEvaluation, stack_states
from fedwidth.experiment import Experiment
from fedwidth.models.spectral_norm import spectral_norms_of
from fedwidth.models.static_norm import norms_of
from fedwidth.objectives import call
from fedwidth.plan.isolation import set_mode, untouched
from fedwidth.plan.watching.side_effects import side_effect
from fedwidth.run.recorder import Recorder
from fedwidth.training.server.state import Server


class LockstepEvaluation:
    """Evaluates the runs' states."""

    def __init__(self, experiments: Sequence[Experiment]) -> None:
        first = experiments[0]
        mask, self.tied = first.settings.training.mask, first.plan.tied
        packed = PackedEvaluation(first.model, first.data, mask=mask, objective=first.objective)
        prepared = norms_of(first.model) or spectral_norms_of(first.model)  # which is done model by model
        self.packed = None if prepared or _draws(first) else packed

    def measure(self, ended: Sequence[tuple[Recorder, Server]]) -> list[Measured | None]:
        """What is measured after a round of every run; None where it is not evaluated."""
        due = [recorder.experiment.evaluator.is_due(server.round) for recorder, server in ended]
        if self.packed is None:
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
        assert self.packed is not None
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
        assert self.packed is not None
        data = self.packed.data
        if kind == "local":
            return self.packed.local(states, partition)
        if kind == "validation":
            return self.packed.scores(states, data.train, partition.validation, by_class=by_class)
        return self.packed.scores(states, data.test, by_class=by_class)

    @staticmethod
    def _describe(recorder: Recorder, server: Server, found: Mapping[tuple[str, int, int], Any]) -> Measured:
        experiment = recorder.experiment
        own = {kind: found[kind, key, id(server.state)] for kind, key in _kinds(experiment)}
        local = own.pop("local", None)
        return experiment.evaluator.describe(server, own, local, before=recorder.server)  # which has not moved on yet


def _draws(experiment: Experiment) -> bool:
    """Whether the model draws or counts while it answers: one answer for several runs is not that of each alone."""
    model, inputs = experiment.model, moved(experiment.data.example(), experiment.evaluator.device)
    with untouched(model), torch.no_grad():
        set_mode(model, training=False)
        call(model, inputs)
        return side_effect(model, lambda: call(model, inputs)) is not None


def _kinds(experiment: Experiment) -> list[tuple[str, int]]:
    """The kinds of scores a run asks for, each with what it depends on beside the state: its partition, or nothing."""
    partition = experiment.partition
    asked = {"global": experiment.settings.evaluation.test, "validation": len(partition.validation) > 0}
    asked["local"] = experiment.evaluator.is_local
    return [(kind, 0 if kind == "global" else id(partition)) for kind, wanted in asked.items() if wanted]
