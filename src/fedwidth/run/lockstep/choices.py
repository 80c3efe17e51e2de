"""The sub-models of a round of several runs, each choice made once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedwidth.methods import Task
from fedwidth.run.recorder import Recorder
from fedwidth.training.client import Trainer


class Choices:
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
