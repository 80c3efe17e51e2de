"""The loop: sample clients, run a round, evaluate, save. From settings alone, or with your own model and data."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedwidth.config.build import (
    build_model,
    check_validation,
    check_values,
    find_device,
    load_data,
    plan_model,
    set_precision,
    split_data,
)
from fedwidth.config.method_settings import check_exponent, method_of, name_method, with_needs
from fedwidth.config.read import check, check_devices, identity, settings_toml
from fedwidth.core.cost import Cost, count_bytes
from fedwidth.core.part import Part
from fedwidth.core.submodel import state_of
from fedwidth.data import Data, Partition
from fedwidth.devices.capacity import sample_clients
from fedwidth.devices.correlation import correlate
from fedwidth.devices.time import FAILED, LATE, Paces, fails
from fedwidth.engines import make_engine
from fedwidth.errors import OptionError
from fedwidth.methods import Beginning, Method, Task
from fedwidth.randomness import torch_seed
from fedwidth.run import checkpoint, folder
from fedwidth.run import checkpoint_history as history
from fedwidth.run.recorder import Course, Line, Measured, Result, Stopped
from fedwidth.run.summary import describe_clients
from fedwidth.settings import Settings
from fedwidth.training import evaluation
from fedwidth.training.batches import count_passes
from fedwidth.training.client import Trainer
from fedwidth.training.client_memory import FOLDER, ClientMemory, Files, forget_clients
from fedwidth.training.gpu import autocast, on_device
from fedwidth.training.representative import LastRound, accuracy_by_capacity
from fedwidth.training.rounds import Engine, Report, Rounds, compares_updates, run_round
from fedwidth.training.schedule import learning_rate
from fedwidth.training.server import Server

__all__ = ["Course", "Experiment", "Line", "Measured", "Result", "Stopped", "build_model"]

MAX_CLIENTS_LISTED = 10_000

NUMBER_BYTES = 8


class Experiment:
    """One run: what it needs is built and checked here, before anything is written.

    `model` (which is copied), `data`, `partition` and `method` may be your own; otherwise the settings name them.
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
        public: Data | None = None,
    ) -> None:
        if method is not None:
            method = method.with_options()
            settings = name_method(settings, method)
        check_values(settings)
        if partition is None:
            check(settings, method)
        self.method = method or method_of(settings)
        check_exponent(settings, self.method)
        self.settings = settings = with_needs(settings, self.method)
        if compares_updates(settings.server) and not self.method.slices:
            raise OptionError(
                f"server.clip must be 0 and server.screen false with {self.method.title}: its sub-models are no slices"
                " of the model, and are not compared"
            )
        self.device = find_device(settings.device)
        self.data = data if data is not None else load_data(settings)
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
            if self.data.train.inputs.device.type != "cuda":  # several runs may share data that is there already
                self.data = self.data.to(self.device)
            set_precision(settings.precision)
        # It is traced on the CPU, wherever a model of the user's own lies.
        whole = copy.deepcopy(model).cpu() if model is not None else build_model(settings, self.data)
        self.model, self.plan = plan_model(whole, settings, self.data)
        self.model.to(self.device)
        enrolled = self.capacities.enrolled(settings.devices.excluded)
        beginning = Beginning(state_of(self.model), self.plan, enrolled, settings.seed, self.method.values)
        self._first_state = self.method.first_state(beginning)
        self._first_memory = self.method.first_memory(replace(beginning, state=self._first_state))
        self.rounds = Rounds(
            self.method,
            self.plan,
            settings.server,
            settings.seed,
            number=settings.rounds,
            clients=len(self.partition),
            enrolled=enrolled,
            model=self.model,
            public=public,
            device=self.device,
            attends=self.attends if devices.dropout or devices.deadline else None,
        )
        self.paces = Paces.of(devices, enrolled)
        self.trainer = Trainer(
            self.model, self.plan, self.data, self.partition, self.method, settings, device=self.device
        )
        self.memory_travels = False
        """Whether what clients remember is sent to them and back: where the server keeps it for real devices."""
        self.costs: dict[Hashable, Cost] = {}
        """Of sub-models by size; runs of one model may share them."""
        if devices.deadline:
            self._check_deadline(devices.deadline)

    def settle(self, engine: str) -> None:
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
        if cohort is not None and (self.paces is not None or self.rounds.attends is not None):
            raise OptionError(
                "devices.rates, bandwidth, deadline and dropout are for simulated devices, and these are real:"
                " leave them out"
            )
        place = Path(out) if out is not None else None
        with ExitStack() as stack:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            # One thread on the CPU: sums then have one order, and results do not depend on the number of cores.
            torch.set_num_threads(1)
            stack.enter_context(on_device(self.device))
            engine = engine or make_engine(self.trainer)
            stack.callback(engine.close)
            course = stack.enter_context(self.begin(place, resume=resume, overwrite=overwrite))
            chosen: dict[int, list[Task]] = {}

            def coming() -> tuple[list[Task], int] | None:
                return self._look_ahead(course.server.round + 1, chosen)

            while not course.ended:
                before = course.server
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
                is_measured = self.is_measured(server.round)
                measured = self.measure(server, before=before, cohort=drawn) if is_measured else None
                course.note(server, tasks, report, measured, cohort=drawn)
                stopping = stop() and not course.ended
                course.save(always=stopping)
                on_round(course.lines[-1])
                if stopping:
                    raise Stopped(f"stopped after round {server.round} of {self.settings.rounds}")
            return course.finish()

    @contextmanager
    def begin(
        self, place: Path | None, *, resume: bool = False, overwrite: bool = False, packed: int = 1
    ) -> Iterator[Course]:
        """The run under way, from its first round or its last checkpoint; its folder is locked meanwhile."""
        with ExitStack() as stack:
            if place is not None:
                folder.check(place, self.settings, resume=resume, overwrite=overwrite)
                stack.enter_context(folder.locked(place))
                if overwrite:
                    folder.clear(place)
            server, seconds = self._start(place, resume)
            if self.device.type == "cuda" and self.trainer.takes_channels_last:  # then evaluation is faster
                self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            if place and not (place / folder.CONFIG).exists():
                checkpoint.write_whole(place / folder.CONFIG, settings_toml(self.settings))
            yield stack.enter_context(Course(self, place, server, seconds=seconds, packed=packed))

    def is_measured(self, round: int) -> bool:
        """Whether the state after so many rounds is evaluated."""
        return round % self.settings.evaluation.every == 0 or round == self.settings.rounds

    def is_last(self, round: int) -> bool:
        """Whether the state after so many rounds is the run's last."""
        return round >= self.settings.rounds

    def cohort(self, round: int) -> list[tuple[int, float]]:
        """Who takes part in a round, with the capacity each has in it."""
        clients = sample_clients(
            len(self.partition), self.settings.devices.per_round, round=round, seed=self.settings.seed
        )
        pairs = [(client, self._capacity(client, round)) for client in clients]
        return [pair for pair in pairs if pair[1] not in self.settings.devices.excluded]

    def _look_ahead(self, round: int, chosen: dict[int, list[Task]]) -> tuple[list[Task], int] | None:
        """Choose the sub-models of a round that is still to come, while the device trains; None after the last."""
        if round >= self.settings.rounds:
            return None
        tasks = self.rounds.assign(Server({}, round), self.cohort(round))
        chosen[round] = self.rounds.attending(tasks, round)
        return chosen[round], round

    def attends(self, task: Task, round: int) -> bool:
        """Whether the simulated device of a task neither fails in this round nor comes after the deadline."""
        devices = self.settings.devices
        if fails(devices, task.client, round=round, seed=self.settings.seed):
            return False
        return not devices.deadline or self.device_seconds(task) <= devices.deadline

    def device_seconds(self, task: Task) -> float:
        """How long the task would take its device: being sent, training, reporting."""
        if self.paces is None:
            return 0.0
        cost, training = self._cost(task), self.settings.training
        samples = len(self.partition[task.client])
        passes = count_passes(samples, training) + (samples if self.trainer.rule.probes else 0)
        beside = self._beside([replace(task, sends=self._example_sends)])
        sent = 2 * int(cost.bytes + cost.buffer_bytes) + sum(beside)
        return self.paces.seconds(task.capacity, macs=3 * int(cost.macs) * passes, sent=sent)

    def _check_deadline(self, deadline: float) -> None:
        """Refuse one that nobody can keep, not even with the fewest samples there are."""
        client = int(self.partition.sizes.argmin())
        cohort = [(client, capacity) for capacity in self.rounds.enrolled]
        fastest = min(self.device_seconds(task) for task in self.rounds.assign(self.first_server(), cohort))
        if fastest > deadline:
            raise OptionError(f"devices.deadline is {deadline:g} s, but the fastest client needs {fastest:.3g} s")

    @cached_property
    def _example_sends(self) -> Mapping[str, Any]:
        """What clients are sent beside sub-models, as large as in every round."""
        return self.trainer.example_sends(self._first_state)

    def evaluate(self, server: Server) -> Line:
        """Global, validation, local and per-capacity accuracy of a server's state."""
        return self.measure(server).line

    def measure(
        self, server: Server, *, before: Server | None = None, cohort: Sequence[tuple[int, float]] = ()
    ) -> Measured:
        """The same, with the accuracy of every client.

        `before` is the server as the last round began, and `cohort` who was to train in it: they decide which sub-model
        stands for a capacity. Without `before` the method's memory is taken as the server holds it now, and without a
        cohort it is the one that the settings draw.
        """
        settings, data, scores = self.settings.evaluation, self.data, {}
        model = self.prepare(self.model, server.state)
        score = partial(evaluation.score, by_class=self.is_last(server.round))
        kept: torch.Tensor | None = None
        if settings.test:
            scores["global"], kept = score(model, data, data.test, settings, self.device)
        if len(held := self.partition.validation):
            scores["validation"], _ = score(model, data, data.train, settings, self.device, held)
        local = self._local(kept) if self.is_local else None
        return self.describe(server, scores, local, before=before, cohort=cohort)

    def prepare(self, model: nn.Module, state: Mapping[str, torch.Tensor], *, precise: bool = False) -> nn.Module:
        """The model with this state, ready to be measured; `precise` is for those who take it away."""
        settings, partition = self.settings.evaluation, self.partition
        samples = partition.trained_on if len(partition.validation) else None
        precision = "float32" if precise else self.settings.precision
        with autocast(self.device, precision):  # statistics as in training; the scores are more precise
            return evaluation.prepare(model, state, self.data, settings, self.device, samples)

    @property
    def is_local(self) -> bool:
        """Whether the clients' own test data are measured; where they are of the test set, only if that is."""
        settings, partition = self.settings.evaluation, self.partition
        held_out = partition.tested_on == "train" and len(partition.test.samples) > 0
        return settings.local and (settings.test or held_out)

    def describe(
        self,
        server: Server,
        scores: Mapping[str, evaluation.Score],
        local: evaluation.LocalScores | None,
        *,
        before: Server | None = None,
        cohort: Sequence[tuple[int, float]] = (),
    ) -> Measured:
        """What was measured, as a line of the metrics has it; `before` and `cohort` as for `measure`.

        `scores` are of the test set ("global") and of the validation samples ("validation"), where measured.
        """
        line: Line = {}
        for name, score in scores.items():
            line |= {f"{name}_accuracy": score.accuracy, f"{name}_loss": score.loss}
        first = next(iter(scores.values()))
        if self.is_last(server.round) and first.by_class is not None:
            line["class_accuracy"] = first.by_class
        if local is not None:
            line |= {"local_accuracy": local.mean, "local_quantiles": local.quantiles}
        if capacities := self.settings.evaluation.capacities:
            round = max(0, server.round - 1)
            then = server if before is None else before
            last = LastRound(round, cohort or self.cohort(round), self.settings.seed, then.memory, then.state)
            line |= accuracy_by_capacity(
                self.method,
                self.plan,
                capacities,
                last=last,
                accuracy=lambda index: self._accuracy_of(server, index),
                draws=self.is_last(server.round),  # they take ten times as long
            )
        return Measured(line, local)

    def _local(self, kept: torch.Tensor | None) -> evaluation.LocalScores:
        """What the prepared model scores on each client's own test data; `kept` is of the test set, if measured."""
        partition, mask = self.partition, self.settings.training.mask
        if kept is not None and (partition.tested_on == "test" or not len(partition.test.samples)):
            return evaluation.local_scores(kept, partition, self.data, mask)
        split = self.data.train.take(partition.test.samples)
        _, kept = evaluation.score(self.model, self.data, split, self.settings.evaluation, self.device)
        return evaluation.local_scores_of(kept, partition, self.data, mask)

    def _accuracy_of(self, server: Server, part: Part) -> float:
        """What this part of the model scores on the test set, or on the validation samples where that is not seen."""
        small = part.module(self.model, self.plan).to(self.device)
        self.prepare(small, part.cut(server.state, self.plan))
        settings, data = self.settings.evaluation, self.data
        split, samples = (data.test, None) if settings.test else (data.train, self.partition.validation)
        score, _ = evaluation.score(small, data, split, settings, self.device, samples)
        return score.accuracy

    def _capacity(self, client: int, round: int) -> float:
        return self.capacities.of_client(
            client,
            len(self.partition),
            round=round,
            seed=self.settings.seed,
            dynamic=self.settings.devices.dynamic,
        )

    def _start(self, place: Path | None, resume: bool) -> tuple[Server, float]:
        if resume and place is None:
            raise OptionError("there is nothing to resume without an output folder")
        if resume and place and (place / checkpoint.NAME).exists():
            server, facts = checkpoint.load_server(
                place,
                identity=self._identity(),
                device=self.device,
                files=self._files(place),
                also=lambda: history.files_needed(place),
            )
            return server, float(facts["seconds"])
        if place:
            forget_clients(place)
        return self.first_server(self._files(place)), 0.0

    def explain_memory(self) -> str:
        """What clients may come to remember in all, in words; empty where they remember nothing."""
        local = self.method.local
        if local is None or not local.own:
            return ""
        each = len(local.own) * count_bytes(self.plan, {}, dict(self.model.named_parameters(remove_duplicate=False)))
        most, clients = each * len(self.partition), len(self.partition)
        where = (
            "in files" if self.settings.client_memory == "disk" else "in memory; client_memory=disk keeps it in files"
        )
        return f"clients remember up to {most / 1e9:.2g} GB ({clients} of {each / 1e6:.3g} MB), kept {where}"

    def first_server(self, files: Files | None = None) -> Server:
        """The server before the first round; what clients remember is kept in `files`, or in memory."""
        return Server(self._first_state, memory=self._first_memory, clients=ClientMemory(files=files))

    def _files(self, place: Path | None) -> Files | None:
        """Where clients' memory is kept, if not in the memory of this machine."""
        if self.settings.client_memory != "disk":
            return None
        return Files(place / FOLDER if place else None)

    def copy(self, server: Server, seconds: float) -> checkpoint.Copy:
        """What the checkpoint of a server holds, taken now."""
        return checkpoint.copy_server(server, identity=self._identity(), extra={"seconds": seconds})

    def _identity(self) -> str:
        """What a checkpoint must share with this run: settings that influence results, data and model."""
        sizes = [len(self.data.train), len(self.data.test), self.data.classes, len(self.partition)]
        shapes = {name: list(shape) for name, shape in self.plan.shapes.items()}
        return f"{identity(self.settings)}-{torch_seed(0, json.dumps([sizes, shapes])):x}"

    def line(
        self, server: Server, tasks: Sequence[Task], report: Report, cohort: Sequence[tuple[int, float]] = ()
    ) -> Line:
        """The metrics of the round that just ended.

        Where clients were absent, the whole cohort is written down too: sub-models may depend on the places in it.
        """
        training = self.settings.training
        worked = [*tasks, *(task for task, _ in report.unused)]
        all_passes = [*report.passes, *(passes for _, passes in report.unused)]
        costs = [self._cost(task) for task in worked]
        size = sum(int(c.bytes + c.buffer_bytes) for c in costs)
        sent, reported = self._beside(worked)
        # A sample costs three forward passes: one forward, and about two for the gradients.
        macs = sum(3 * int(c.macs) * passes for c, passes in zip(costs, all_passes, strict=True))
        line: Line = {
            "round": server.round,
            "learning_rate": learning_rate(training, server.round - 1, self.settings.rounds),
            "clients": [task.client for task in tasks],
            "capacities": [float(task.capacity) for task in tasks],
            "train_loss": sum(report.losses) / len(report.losses) if report.losses else None,
            "bytes_down": size + sent,
            "bytes_up": size + reported,
            "macs": macs,
        }
        if clipped := {str(client): float(f"{times:.3g}") for client, times in report.excess.items() if times > 1}:
            line["clipped"] = clipped
        if report.opposed:
            line["opposed"] = {str(client): float(f"{cosine:.3g}") for client, cosine in report.opposed.items()}
        if quarantined := server.conduct.new(server.round, self.settings.server.quarantine):
            line["quarantined"] = {str(client): last for client, last in quarantined.items()}
        absent = dict(report.absent)
        if absent or self.rounds.attends is not None:
            drawn = cohort or self.cohort(server.round - 1)
            absent |= self._left_out([client for client, _ in drawn], [*line["clients"], *absent], server.round - 1)
        if absent:
            line["absent"] = {str(client): why for client, why in absent.items()}
            line["cohort"] = [[client, float(capacity)] for client, capacity in drawn]
        if self.paces is not None:
            slowest = max((self.device_seconds(task) for task in worked), default=0.0)
            line["device_seconds"] = self.settings.devices.deadline if LATE in absent.values() else slowest
        return line

    def _left_out(self, drawn: Sequence[int], known: Collection[int], round: int) -> dict[int, str]:
        """The clients of a cohort that were left out of the round before it began, and why."""
        devices, seed = self.settings.devices, self.settings.seed
        left = [client for client in drawn if client not in known]
        return {client: FAILED if fails(devices, client, round=round, seed=seed) else LATE for client in left}

    def _beside(self, tasks: Sequence[Task]) -> tuple[int, int]:
        """Bytes that clients are sent, and report, beside their sub-models."""
        local = self.method.local
        if local is None:
            return 0, 0
        sent = reported = 0
        for task in tasks:
            for name, value in task.sends.items():
                if name in local.own and not self.memory_travels:
                    continue
                if isinstance(value, Mapping):
                    shapes = task.index.shapes
                    sent += sum(math.prod(shapes[tensor]) * full.element_size() for tensor, full in value.items())
                else:
                    sent += NUMBER_BYTES
            reports = len(local.adds) + (len(local.own) if self.memory_travels else 0)
            reported += reports * int(self._cost(task).bytes)
        return sent, reported

    def _cost(self, task: Task) -> Cost:
        size = task.part.size
        if size not in self.costs:
            self.costs[size] = task.part.cost(self.model, self.plan, self.data.example(), capacity=task.capacity)
        return self.costs[size]

    def clients(self, server: Server, measured: Measured | None) -> list[dict[str, Any]]:
        """Every client as it is described in clients.json; none where they are too many or not measured."""
        clients = len(self.partition)
        if not self.is_local or clients > MAX_CLIENTS_LISTED:
            return []
        local = (measured or self.measure(server)).local
        assert local is not None
        fixed = not self.settings.devices.dynamic
        capacities = [self._capacity(client, 0) if fixed else None for client in range(clients)]
        return describe_clients(self.partition, capacities, local.accuracies.tolist())
