"""The loop: sample clients, run a round, evaluate, save. From settings alone, or with your own model and data."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from fedwidth.config.build import (
    build_model,
    find_device,
    load_data,
    plan_model,
    public_data,
    set_precision,
    split_data,
)
from fedwidth.config.check import check_devices, check_settings, check_validation, check_values
from fedwidth.config.influence import identity
from fedwidth.config.method_settings import check_exponent, method_of, name_method, with_needs, with_public
from fedwidth.config.objective_settings import name_objective
from fedwidth.core.submodel import state_of
from fedwidth.data import Data, Partition
from fedwidth.devices.cohorts import Cohorts
from fedwidth.devices.correlation import correlate
from fedwidth.devices.time import Speeds
from fedwidth.engines import make_engine
from fedwidth.errors import OptionError
from fedwidth.evaluation.evaluator import Evaluator, Measured
from fedwidth.methods import Beginning, Method, Task
from fedwidth.objectives import Objective, objective_of
from fedwidth.plan import Plan
from fedwidth.randomness import torch_seed
from fedwidth.run.metrics import Line
from fedwidth.run.recorder import Recorder, Result, Stopped
from fedwidth.run.start import begin
from fedwidth.run.task_costs import TaskCosts
from fedwidth.run.warm_start import fits, read_weights, warm_start
from fedwidth.settings import Settings
from fedwidth.training.client import Trainer
from fedwidth.training.client_memory import ClientMemory, Files
from fedwidth.training.gpu import on_gpu
from fedwidth.training.rounds import Engine, Rounds, compares_updates, run_round
from fedwidth.training.server import Server

__all__ = ["Experiment", "Line", "Measured", "Recorder", "Result", "Stopped", "build_model"]


class Experiment:
    """One run: what it needs is built and checked here, before anything is written.

    `model` (which is copied), `data`, `partition`, `method` and `objective` may be your own; otherwise the settings
    name them.
    `public` is data of the server's own, for methods that close a round with it.
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
    ) -> None:
        if method is not None:
            method = method.with_options()
            settings = name_method(settings, method)
        if isinstance(objective, str):
            settings, objective = replace(settings, objective=replace(settings.objective, name=objective)), None
        elif objective is not None:
            settings = name_objective(settings, objective)
        check_values(settings)
        if partition is None:
            check_settings(settings, method, objective)
        self.method = method or method_of(settings)
        check_exponent(settings, self.method)
        self.settings = settings = with_needs(settings, self.method)
        if self.method.public and partition is None and public is None:
            self.settings = settings = with_public(settings)
        if compares_updates(settings.server) and not self.method.slices:
            raise OptionError(
                f"server.clip must be 0 and server.screen false with {self.method.title}: its sub-models are no slices"
                " of the model, and are not compared"
            )
        self.device = find_device(settings.device)
        self.data = data if data is not None else load_data(settings)
        self.objective = objective or objective_of(settings.objective, self.data)
        if (reason := self.objective.refuses(self.method)) is not None:
            raise OptionError(f"{reason}: choose another method or objective")
        self.settings = settings = with_needs(settings, self.objective)
        self.partition = partition if partition is not None else split_data(settings, self.data)
        if settings.devices.per_round > len(self.partition):
            raise OptionError(
                f"devices.per_round is {settings.devices.per_round}, but there are only {len(self.partition)} clients"
            )
        check_validation(settings, self.partition)
        devices = settings.devices
        self.capacities = correlate(
            check_devices(settings, len(self.partition)),
            self.partition,
            devices.correlate,
            devices.correlate_strength,
            seed=settings.seed,
        )
        if self.device.type == "cuda":
            if not self.data.is_on(self.device):  # several runs may share data that is there already
                self.data = self.data.to(self.device)
            set_precision(settings.precision)
        # It is traced on the CPU, wherever a model of the user's own lies.
        whole = build_model(settings, self.data, self.objective) if model is None else copy.deepcopy(model).cpu()
        self.model, self.plan = self._with_weights(whole)
        self.model.to(self.device)
        self.cohorts = Cohorts(self.capacities, len(self.partition), devices, settings.seed)
        enrolled = self.capacities.enrolled(settings.devices.excluded)
        beginning = Beginning(state_of(self.model), self.plan, enrolled, settings.seed, self.method.values)
        self.first_state = self.method.first_state(beginning)
        self._first_memory = self.method.first_memory(replace(beginning, state=self.first_state))
        self.trainer = Trainer(
            self.model,
            self.plan,
            self.data,
            self.partition,
            self.method,
            settings,
            device=self.device,
            objective=self.objective,
        )
        self.costs = TaskCosts(self.trainer, self.first_state, Speeds.of(devices, enrolled))
        self.rounds = Rounds(
            self.method,
            self.plan,
            settings.server,
            settings.seed,
            number=settings.rounds,
            clients=len(self.partition),
            enrolled=enrolled,
            model=self.model,
            public=self._public(public),
            objective=self.objective,
            device=self.device,
            attends=self.costs.attends if devices.dropout or devices.deadline else None,
        )
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
        if devices.deadline:
            self.costs.check_deadline(self.rounds, self.first_server())

    def _with_weights(self, whole: nn.Module) -> tuple[nn.Module, Plan]:
        """The model at the width the server holds, and its plan; with the weights that the settings name."""
        wanted = self.settings.model
        weights = read_weights(wanted.weights) if wanted.weights else None
        first = weights is not None and (
            wanted.width == 1 or fits(whole, weights)
        )  # or they are as narrow as it will be
        if weights is not None and first:
            warm_start(whole, weights, wanted.weights, wanted.fresh)
        model, plan = plan_model(whole, self.settings, self.data, self.objective)
        if weights is not None and not first:
            warm_start(model, weights, wanted.weights, wanted.fresh)
        return model, plan

    def _public(self, given: Data | None) -> Data | None:
        """The server's own data: as given, or as the settings say."""
        found = public_data(self.settings, self.data, self.partition) if given is None else given
        if found is None and self.method.public:
            raise OptionError(
                f"{self.method.title} needs data of the server's own: give public=…, or a partition made with public=…"
            )
        return found if found is None or self.device.type == "cpu" else found.to(self.device)

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
        folder = Path(out) if out is not None else None
        with ExitStack() as stack:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            # One thread on the CPU: sums then have one order, and results do not depend on the number of cores.
            torch.set_num_threads(1)
            stack.enter_context(on_gpu(self.device))
            engine = engine or make_engine(self.trainer)
            stack.callback(engine.close)
            recorder = stack.enter_context(begin(self, folder, resume=resume, overwrite=overwrite))
            chosen: dict[int, list[Task]] = {}

            def coming() -> tuple[list[Task], int] | None:
                return self._look_ahead(recorder.server.round + 1, chosen)

            while not recorder.ended:
                before = recorder.server
                ready = chosen.pop(before.round, None)
                drawn = [] if ready else (cohort or self.cohort)(before.round)
                server, tasks, report = run_round(
                    self.rounds,
                    before,
                    drawn,
                    engine,
                    tasks=ready,
                    coming=coming if cohort is None and not self.method.reads else None,
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

    def _look_ahead(self, round: int, chosen: dict[int, list[Task]]) -> tuple[list[Task], int] | None:
        """Choose the sub-models of a round that is still to come, while the device trains; None after the last."""
        if round >= self.settings.rounds:
            return None
        tasks = self.rounds.assign(Server({}, round), self.cohort(round))
        chosen[round] = self.rounds.attending(tasks, round)
        return chosen[round], round

    def evaluate(self, server: Server) -> Line:
        """The metric of a server's state on test and validation samples, on each client's own, and at each capacity."""
        return self.evaluator.measure(server).line

    def first_server(self, files: Files | None = None) -> Server:
        """The server before the first round; what clients remember is kept in `files`, or in memory."""
        return Server(self.first_state, memory=self._first_memory, clients=ClientMemory(files=files))

    @property
    def identity(self) -> str:
        """What a checkpoint must share with this run: settings that influence results, data and model."""
        sizes = [len(self.data.train), len(self.data.test), self.data.classes, len(self.partition)]
        shapes = {name: list(shape) for name, shape in self.plan.shapes.items()}
        return f"{identity(self.settings)}-{torch_seed(0, json.dumps([sizes, shapes])):x}"
