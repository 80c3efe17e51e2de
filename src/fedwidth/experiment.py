"""The loop: sample clients, run a round, evaluate, save. From settings alone, or with your own model and data."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from fedwidth.config.build import build_model
from fedwidth.config.influence import identity
from fedwidth.core.submodel import state_of
from fedwidth.data import Data, Partition
from fedwidth.data.records import moved
from fedwidth.devices.cohorts import Cohorts
from fedwidth.devices.time import Speeds
from fedwidth.engines import make_engine
from fedwidth.errors import OptionError
from fedwidth.evaluation.evaluator import Evaluator, Measured
from fedwidth.gpu import on_gpu
from fedwidth.methods import Beginning, Method, Task
from fedwidth.objectives import Objective
from fedwidth.objectives.played import step_memory
from fedwidth.randomness import torch_seed
from fedwidth.run.budget import Budget
from fedwidth.run.metrics import Line
from fedwidth.run.recorder import Recorder, Result, Stopped
from fedwidth.run.setup import set_up
from fedwidth.run.start import begin
from fedwidth.run.task_costs import TaskCosts
from fedwidth.settings import Settings
from fedwidth.training.client import Trainer
from fedwidth.training.client_memory import ClientMemory, Files
from fedwidth.training.engine import Engine
from fedwidth.training.round import run_round
from fedwidth.training.rounds import Rounds
from fedwidth.training.server.device_noise import DeviceNoise
from fedwidth.training.server.norms import BY_CAPACITY, first_norms, norm_tensors
from fedwidth.training.server.state import Server

__all__ = ["Experiment", "Line", "Measured", "Recorder", "Result", "Stopped", "build_model"]


class Experiment:
    """One run: what it needs is built and checked here, before anything is written.

    `model` (which is copied), `data`, `partition`, `method` and `objective` may be your own; otherwise the settings
    name them.
    `public` is data of the server's own, for methods that close a round with it; `models` are networks that clients of
    some capacities hold in place of widths of the run's model, by capacity. `named` says that data and partition are
    those the settings name, made before: what is your own is written down as such, and no recipe.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        model: nn.Module | None = None,
        data: Data | None = None,
        partition: Partition | None = None,
        method: Method | None = None,
        objective: Objective | str | None = None,
        public: Data | None = None,
        models: Mapping[float, nn.Module] | None = None,
        named: bool = False,
    ) -> None:
        setup = set_up(
            settings,
            model=model,
            data=data,
            partition=partition,
            method=method,
            objective=objective,
            public=public,
            models=models,
            named=named,
        )
        self.settings = settings = setup.settings
        self.method, self.objective, self.device = setup.method, setup.objective, setup.device
        self.data, self.partition, self.capacities = setup.data, setup.partition, setup.capacities
        self.model, self.plan = setup.model, setup.plan
        self.given = setup.given
        """What the run was given in Python that its settings do not name."""
        enrolled = self.method.enrolled
        example = moved(self.data.example(), self.device)
        beginning = Beginning(
            state_of(self.model),
            self.plan,
            enrolled,
            settings.seed,
            self.method.values,
            model=self.model,
            example=example,
            answer=self.objective.answer,
            takes=step_memory(self.objective, self.data, settings),
        )
        self.first_state = self.method.first_state(beginning)
        self._first_memory = self.method.first_memory(replace(beginning, state=self.first_state))
        self.unfit = self.method.left_out(self._first_memory, enrolled)
        """The capacities whose devices can train nothing, and why; they are left out of every round."""
        # The settings stay as they were given: a run that is resumed is compared with them.
        devices, speeds = settings.devices, Speeds.of(settings.devices, enrolled)
        devices = replace(devices, excluded=[*devices.excluded, *self.unfit])
        enrolled = tuple(capacity for capacity in enrolled if capacity not in self.unfit)
        self.cohorts = Cohorts(self.capacities, len(self.partition), devices, settings.seed)
        self.trainer = Trainer(
            self.model,
            self.plan,
            self.data,
            self.partition,
            self.method,
            settings,
            device=self.device,
            objective=self.objective,
            public=setup.public,
        )
        self.costs = TaskCosts(self.trainer, self.first_state, speeds)
        self.evaluator = Evaluator(
            self.model,
            self.plan,
            self.data,
            self.partition,
            self.method,
            settings,
            device=self.device,
            cohort=self.cohorts.of_round,
            objective=self.objective,
        )
        self.evaluator.check_capacities(self.first_server())
        self.rounds = Rounds(
            self.method,
            self.plan,
            settings.server,
            settings.seed,
            secure=settings.secure,
            privacy=settings.privacy,
            expected=self.cohorts.expected(),
            trained=self.trainer.trained,
            device_noise=self._device_noise(),
            number=settings.rounds,
            clients=len(self.partition),
            enrolled=enrolled,
            model=self.model,
            public=setup.public,
            example=example,
            objective=self.objective,
            device=self.device,
            precision=settings.precision,
            channels_last=self.method.public and self.trainer.takes_channels_last,
            average=settings.adapter.average,
            validate=self.evaluator.validate if len(self.partition.validation) else None,
            attends=self.costs.attends if devices.dropout or devices.deadline else None,
        )
        if devices.deadline:
            self.costs.check_deadline(self.rounds, self.first_server())
        self.budget = Budget.of(self) if settings.privacy.noise else None

    def use_engine(self, engine: str) -> None:
        """Train with this engine where the settings leave the choice; what is saved names it."""
        if self.settings.engine == "auto":
            self.settings = self.trainer.settings = replace(self.settings, engine=engine)

    def run(
        self,
        out: str | Path | None = None,
        *,
        resume: bool = False,
        overwrite: bool = False,
        on_round: Callable[[Line], None] = lambda _: None,
        stop: Callable[[], bool] = lambda: False,
        on_clients: Callable[[int, int], None] = lambda *_: None,
        engine: Engine | None = None,
        cohort: Callable[[int], Sequence[tuple[int, float]]] | None = None,
    ) -> Result:
        """Run to the last round. With `out` everything is saved there as it happens, and `resume` goes on from it.

        `engine` trains instead of the one the settings name, and is closed at the end; `cohort` says who takes part in
        a round, with which capacity, where that is not for the settings to say (real devices come and go). A run that
        was stopped before its first checkpoint, or never began, is resumed from the beginning.
        """
        if cohort is not None and (self.costs.speeds is not None or self.rounds.attends is not None):
            raise OptionError(
                "devices.rates, bandwidth, deadline and dropout are for simulated devices, and these are real:"
                " leave them out"
            )
        if cohort is not None and self.settings.devices.excluded:
            raise OptionError(
                "devices.excluded and whole_only are for simulated devices, and these are real: leave them out, and let"
                " none join that is not to train"
            )
        if cohort is not None and self.budget is not None and not self.settings.secure.enabled:
            raise OptionError(
                "privacy.noise is for simulated devices, and these are real: they come when they like, which no draw"
                " accounts for; with secure.enabled they add noise themselves"
            )
        if cohort is not None and self.settings.server.norms == BY_CAPACITY:
            raise OptionError(
                "server.norms must be shared on real devices: those of one capacity would wait until another has"
                " trained"
            )
        folder = Path(out) if out is not None else None
        with ExitStack() as stack:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            # One thread on the CPU: sums then have one order, and results do not depend on the number of cores.
            torch.set_num_threads(1)
            stack.enter_context(on_gpu(self.device))
            engine = engine or make_engine(self.trainer)
            stack.callback(engine.close)
            recorder = stack.enter_context(begin(self, folder, resume=resume, overwrite=overwrite))
            chosen: dict[int, tuple[Sequence[tuple[int, float]], list[Task]]] = {}
            known = cohort is None
            recorder.last_round = self.last_round(recorder.server, known=known)
            self.evaluator = replace(self.evaluator, last=recorder.last_round)

            def coming() -> tuple[list[Task], int] | None:
                before = recorder.last_round
                return self._look_ahead(recorder.server.round + 1, chosen, cohort or self.cohort, before=before)

            while not recorder.ended:
                round = recorder.server.round
                drawn, ready = chosen.pop(round, None) or ((cohort or self.cohort)(round), None)
                before = recorder.open([client for client, _ in drawn])
                if not known and self.budget is not None:  # who was drawn decides how many may follow
                    recorder.last_round = self.last_round(replace(before, round=round + 1), known=known)
                    self.evaluator = replace(self.evaluator, last=recorder.last_round)
                server, tasks, report = run_round(
                    self.rounds,
                    before,
                    drawn,
                    engine,
                    tasks=ready,
                    coming=None if self.method.reads else coming,
                    watch=on_clients,
                )
                is_due = self.evaluator.is_due(server.round)
                measured = self.evaluator.measure(server, before=before, cohort=drawn) if is_due else None
                recorder.record(server, tasks, report, measured, cohort=drawn)
                stopping = stop() and not recorder.ended
                recorder.save(always=stopping)
                on_round(recorder.lines[-1])
                if stopping:
                    raise Stopped(f"stopped after round {server.round} of {self.settings.rounds}")
            return recorder.finish()

    def cohort(self, round: int) -> list[tuple[int, float]]:
        """Who takes part in a round, with the capacity each has in it."""
        return self.cohorts.of_round(round)

    def last_round(self, server: Server, *, known: bool = True) -> int:
        """After how many rounds a run ends that has come so far: after all, or where a privacy budget is spent.

        Where the settings do not draw who takes part, that is not `known` beforehand.
        """
        return self.settings.rounds if self.budget is None else self.budget.last_round(server, known=known)

    def _device_noise(self) -> DeviceNoise | None:
        """The noise of clients, where sums are both secure and private."""
        data = replace(self.settings.data, clients=len(self.partition))
        return DeviceNoise.of(replace(self.settings, data=data))

    def _look_ahead(
        self,
        round: int,
        chosen: dict[int, tuple[Sequence[tuple[int, float]], list[Task]]],
        cohort: Callable[[int], Sequence[tuple[int, float]]],
        *,
        before: int,
    ) -> tuple[list[Task], int] | None:
        """Draw who takes part in a round that is still to come, and choose their sub-models; None after the last."""
        if round >= before:
            return None
        drawn = cohort(round)
        chosen[round] = drawn, self.rounds.assign(Server({}, round), drawn)
        return self.rounds.attending(chosen[round][1], round), round

    def evaluate(self, server: Server) -> Line:
        """The metric of a server's state on test and validation samples, on each client's own, and at each capacity."""
        return self.evaluator.measure(server, with_capacities=True).line

    def first_server(self, files: Files | None = None) -> Server:
        """The server before the first round; what clients remember is kept in `files`, or in memory."""
        norms = {}
        if self.settings.server.norms == BY_CAPACITY:
            norms = first_norms(
                self.first_state, norm_tensors(self.model), self.capacities.enrolled(self.settings.devices.excluded)
            )
        return Server(self.first_state, memory=self._first_memory, clients=ClientMemory(files=files), norms=norms)

    @property
    def identity(self) -> str:
        """What a checkpoint must share with this run: settings that influence results, data and model."""
        sizes = [len(self.data.train), len(self.data.test), self.data.classes, len(self.partition)]
        shapes = {name: list(shape) for name, shape in self.plan.shapes.items()}
        known: list[object] = [sizes, shapes]
        if self.method.architectures:
            by_capacity = sorted(self.method.architectures.items())
            known.append([[capacity, one.name, list(one.plan.shapes.items())] for capacity, one in by_capacity])
        return f"{identity(self.settings)}-{torch_seed(0, json.dumps(known)):x}"
