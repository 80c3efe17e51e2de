"""What the rounds of a run have in common, and what the server does at each of their steps (`round.py` has these)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fedwidth.adapters.averages import AVERAGES
from fedwidth.adapters.measures import aggregation_error
from fedwidth.adapters.products import HOLDERS
from fedwidth.core.aggregation import average_tensor
from fedwidth.core.cohort import CohortSum
from fedwidth.core.submodel import State
from fedwidth.core.updates import check_made
from fedwidth.gpu import autocast
from fedwidth.methods import Closing, Method, Task
from fedwidth.methods.lookup.secure_sums import SHELLS, segments_of
from fedwidth.objectives import CLASSIFICATION, Objective
from fedwidth.plan.plan import Plan
from fedwidth.settings import PrivacySettings, SecureSettings, ServerSettings
from fedwidth.training.engine import Report
from fedwidth.training.server.clipping import clip_updates, merged
from fedwidth.training.server.device_noise import DeviceNoise
from fedwidth.training.server.holders import damp
from fedwidth.training.server.norms import close_by_capacity
from fedwidth.training.server.private import PrivateRound, Window
from fedwidth.training.server.robust import robust_average
from fedwidth.training.server.secure import SecureRound
from fedwidth.training.server.single_updates import compares_updates
from fedwidth.training.server.state import Server, with_norms
from fedwidth.training.skeletons import with_channels_last

if TYPE_CHECKING:
    from fedwidth.data import Data


@dataclass(frozen=True)
class Rounds:
    """What the rounds of a run have in common."""

    method: Method
    plan: Plan
    settings: ServerSettings
    seed: int
    secure: SecureSettings = field(default_factory=SecureSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    expected: Mapping[float, float] = field(default_factory=dict)
    """How many clients of each enrolled capacity are expected in a round."""
    trained: frozenset[str] = frozenset()
    """The parameters that clients train; private sums are of these alone."""
    device_noise: DeviceNoise | None = None
    """The noise of clients, where sums are both secure and private."""
    number: int = 1
    """How many rounds the run has."""
    clients: int = 1
    """How many clients there are in all."""
    enrolled: Sequence[float] = (1.0,)
    """The capacities that clients may have."""
    model: nn.Module | None = None
    public: Data | None = None
    example: Any = None
    """Inputs of two samples, as the model takes them."""
    objective: Objective = CLASSIFICATION
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: str = "float32"
    """That of forward passes on the server, where the method takes some."""
    channels_last: bool = False
    """Whether they have the channels of images last in memory."""
    average: str = "units"
    """How adapters are averaged, where the model has some."""
    validate: Callable[[nn.Module], float] | None = None
    """How well a model does on the validation samples, where the run has some."""
    attends: Callable[[Task, int], bool] | None = None
    """Whether the client of a task takes part in a round, where that is simulated; without it all do."""

    @cached_property
    def server_step(self) -> str:
        """The settings of the server's step, to be compared with those of other runs."""
        return repr(self.settings)

    def answer(self, model: nn.Module, inputs: Any) -> Any:
        """What counts of a model's answer, in the precision of the settings."""
        with autocast(self.device, self.precision):
            return self.objective.answer(model, with_channels_last(inputs) if self.channels_last else inputs)

    def assign(self, server: Server, cohort: Sequence[tuple[int, float]]) -> list[Task]:
        """A task for every (client, capacity) of the server's next round."""
        tasks = self.method.assign(
            self.plan, cohort, server.round, server.memory, self.seed, state=server.state, own=server.clients
        )
        robust, private = self.settings.robust != "none", self.privacy.noise > 0
        wants_single = (
            compares_updates(self.settings) or self.secure.enabled or robust or private or bool(self.plan.adapters)
        )
        return [replace(task, single=True) for task in tasks] if wants_single else tasks

    def attending(self, tasks: Sequence[Task], round: int) -> list[Task]:
        """The tasks whose clients neither fail nor come late."""
        attends = self.attends
        return list(tasks) if attends is None else [task for task in tasks if attends(task, round)]

    def send(self, server: Server, tasks: Sequence[Task]) -> list[Task]:
        """The tasks with what their clients are sent beside their sub-models."""
        return self.method.send(
            tasks,
            server.memory,
            server.clients,
            plan=self.plan,
            round=server.round,
            seed=self.seed,
            clients=self.clients,
            public=0 if self.public is None else len(self.public.train),
        )

    def compare(
        self, server: Server, tasks: Sequence[Task], sums: Sequence[CohortSum], report: Report
    ) -> tuple[list[Task], Sequence[CohortSum], Report]:
        """The tasks that count and their sums, with updates clipped and screened as the settings say."""
        if not compares_updates(self.settings):
            return list(tasks), sums, report
        settings = self.settings
        clipped = clip_updates(server.state, sums, tasks, self.plan, settings.clip or math.inf, screen=settings.screen)
        excess = dict(zip((task.client for task in tasks), clipped.excess, strict=True))
        opposed = {tasks[number].client: cosine for number, cosine in clipped.opposed.items()}
        out = {
            number: f"its update points away from those of the others (cosine {cosine:.2g})"
            for number, cosine in clipped.opposed.items()
        }
        report = replace(report, excess=excess, opposed=opposed).without(out, tasks)
        tasks = [task for number, task in enumerate(tasks) if number not in out]
        sums = [total for number, total in enumerate(clipped.sums) if number not in out]
        single = self.method.collect == "updates" or settings.robust != "none" or bool(self.plan.adapters)
        return tasks, sums if single else merged(sums, tasks), report

    def hide(
        self,
        server: Server,
        drawn: Sequence[Task],
        tasks: Sequence[Task],
        sums: Sequence[CohortSum],
        report: Report,
    ) -> tuple[Sequence[CohortSum], Report]:
        """What the server learns of the sums, where they are secure; `drawn` are the tasks of all who were to train."""
        if not self.secure.enabled or report.opened is not None:  # on real devices they never were anything else
            return sums, report
        securely = SecureRound(
            server.state,
            self.plan,
            drawn,
            self.secure,
            by_shells=segments_of(self.method) == SHELLS,
            weighting=self.settings.weighting,
            label_rows=self.settings.label_rows and bool(self.plan.label_axes),
            noise=self.device_noise,
            trained=self.trained,
            round=server.round,
        )
        sums, opened = securely.add(tasks, sums)
        return sums, replace(report, opened=opened)

    @property
    def noised(self) -> bool:
        """Whether the server adds noise: to every round, whoever came."""
        return self.privacy.noise > 0 and not self.secure.enabled

    def private_round(self, server: Server) -> PrivateRound:
        """The private sum of the server's next round: what it is divided by, and its noise."""

        def window(capacity: float) -> Any:
            return self.method.select(
                self.plan, capacity=capacity, round=server.round, seed=self.seed, state=server.state
            )

        windows = [Window(window(capacity), expected) for capacity, expected in self.expected.items() if expected]
        clip, rests = server.clip or self.privacy.clip, self.method.local.rests if self.method.local else None
        names = self.trained - rests(self.plan, server.round) if rests else self.trained
        return PrivateRound(server.state, self.plan, windows, self.privacy, names, clip, self.seed, round=server.round)

    def averaged(
        self, server: Server, tasks: Sequence[Task], sums: Sequence[CohortSum], report: Report
    ) -> tuple[State | None, Sequence[CohortSum], Report]:
        """The average of single updates, where it is a private or a robust one, and the sums that are left of them."""
        if self.noised:
            state, released = self.private_round(server).average(tasks, sums)
            return state, [], replace(report, released=released)
        if self.settings.robust != "none":
            state, kept = robust_average(server.state, sums, tasks, self.plan, self.settings)
            return state, merged(sums, tasks), replace(report, untouched=kept)
        return None, sums, report

    def close(self, server: Server, tasks: Sequence[Task], sums: Sequence[CohortSum], report: Report) -> Server:
        """The server one round further: the method closes the round, and the server takes its step."""
        return self.end(server, tasks, sums, report)[0]

    def end(
        self, server: Server, tasks: Sequence[Task], sums: Sequence[CohortSum], report: Report
    ) -> tuple[Server, list[Task], Report]:
        """The server one round further, whose work counts, and the report with what the end of the round has shown."""
        single = sums
        average, sums, report = self.averaged(server, tasks, sums, report)
        averaging = AVERAGES.get(self.average) if self.plan.adapters else None
        knows_single = bool(self.plan.adapters) and average is None and not self.secure.enabled
        if knows_single and averaging is None and self.method.collect == "sums":
            sums = merged(single, tasks)
        closing = Closing(
            server.state,
            sums,
            self.plan,
            memory=server.memory,
            tasks=tasks,
            round=server.round,
            rounds=self.number,
            seed=self.seed,
            clients=self.clients,
            enrolled=self.enrolled,
            model=self.model,
            public=self.public,
            example=self.example,
            answer=self.answer,
            validate=self.validate,
            channels_last=self.channels_last,
            device=self.device,
            options=self.method.values,
            architectures=self.method.architectures,
            averaging=averaging,
        )
        closed = self.method.finish(closing) if average is None else dict(average)
        # Averages of what is finite are finite. All else is looked at, and makes a device wait.
        known_finite = closed if self.method.close is None and average is None and averaging is None else None
        memory = self.method.remember(closing)
        if knows_single:
            over = self.method.adapters or HOLDERS
            report = replace(report, error=aggregation_error(server.state, closed, single, self.plan, over))
        if (exponent := self.settings.holders_exponent) != 1.0:
            closed = damp(server.state, closed, sums, self.plan, exponent)
        norms: Mapping[float, State] = {}
        if server.norms:
            closed, norms = close_by_capacity(
                server, closed, tasks, sums, partial(self.alone, closing), full=1.0 in self.enrolled
            )
        settings = self.settings
        server = replace(
            server,
            clip=report.released.next_clip if report.released else server.clip,
            clients=server.clients.after(tasks, report.kept, server.state, server.round),
            quarantine=server.quarantine.after(
                report.struck,
                good={task.client for task in tasks},
                round=server.round,
                strikes=settings.strikes,
                quarantine=settings.quarantine,
            ),
        )
        after = server.advance(closed, memory, settings, self.plan.parameters, norms)
        if after.state is not known_finite:
            made = "averaging" if self.method.close is None else f"close of {self.method.name}"
            step = f"the server's step (server.optimiser = {settings.optimiser}, server.lr = {settings.lr:g})"
            check_made(
                {
                    f"round {server.round}: {made}": with_norms(closed, norms),
                    f"round {server.round}: {step}": with_norms(after.state, after.norms),
                }
            )
        return after, list(tasks), report

    def alone(
        self, closing: Closing, state: State, tasks: Sequence[Task], sums: Sequence[CohortSum], names: Collection[str]
    ) -> State:
        """What these tensors become if only these clients had taken part in the round, and had been sent `state`."""
        plan, exponent = self.plan, self.settings.holders_exponent
        if self.method.close is None:
            firsts = {name: plan.tied.get(name, name) for name in names}
            found = {name: average_tensor(state[first].detach(), first, sums, plan) for name, first in firsts.items()}
        else:
            made = self.method.finish(replace(closing, state=state, tasks=tasks, sums=sums, _made={}))
            found = {name: made[name] for name in names}
        return found if exponent == 1.0 else damp(state, found, sums, plan, exponent)
