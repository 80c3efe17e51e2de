"""What is measured of a run's global model after a round, and how a line of the metrics says it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedwidth.core.part import Part
from fedwidth.data import Data, Partition, Split
from fedwidth.errors import OptionError
from fedwidth.evaluation import scores
from fedwidth.evaluation.representative import LastRound, by_capacity, representative_index
from fedwidth.evaluation.scores import LocalScores, Score, has_one_label
from fedwidth.evaluation.widths import ALL, CHOSEN, key_of
from fedwidth.gpu import autocast
from fedwidth.methods import Method
from fedwidth.objectives import CLASSIFICATION, Objective
from fedwidth.objectives.metric import ACCURACY
from fedwidth.plan.plan import Plan
from fedwidth.randomness import seeded, torch_seed
from fedwidth.settings import Settings
from fedwidth.training.server.state import Server


@dataclass(frozen=True)
class Measured:
    """An evaluation: its part of the metrics, and the metric of every client."""

    line: dict[str, Any]
    local: LocalScores | None


@dataclass(frozen=True)
class Evaluator:
    """Measures the states of one run: which samples, when and how precisely is what its settings say."""

    model: nn.Module
    """The global model, which is filled with the states."""
    plan: Plan
    data: Data
    partition: Partition
    method: Method
    settings: Settings
    device: torch.device
    cohort: Callable[[int], Sequence[tuple[int, float]]]
    """Who takes part in a round, with which capacity, as the settings draw it."""
    objective: Objective = CLASSIFICATION
    last: int | None = None
    """After how many rounds the run ends, where not after all."""

    def check_capacities(self, first: Server) -> None:
        """Refuse capacities to measure that the method has no model for, before anything is trained.

        Slices can be cut of any capacity.
        """
        if self.method.slices:
            return
        for capacity in self.settings.evaluation.capacities:
            try:
                representative_index(self.method, self.plan, capacity, LastRound(0, (), 0, first.memory, first.state))
            except OptionError as error:
                raise OptionError(f"evaluation.capacities: {error}") from None

    def is_due(self, round: int) -> bool:
        """Whether the state after so many rounds is measured."""
        settings = self.settings.evaluation
        return round % settings.every == 0 or round in settings.also or self.is_last(round)

    def measures_capacities(self, round: int) -> bool:
        """Whether an evaluation after so many rounds also measures the sub-models of the capacities."""
        every = self.settings.evaluation.capacities_every
        return not every or round % every == 0 or self.is_last(round)

    def is_last(self, round: int) -> bool:
        """Whether the state after so many rounds is the run's last."""
        return round >= (self.settings.rounds if self.last is None else self.last)

    @property
    def is_local(self) -> bool:
        """Whether the clients' own test data are measured; where they are of the test set, only if that is."""
        settings, partition = self.settings.evaluation, self.partition
        held_out = partition.tested_on == "train" and len(partition.test.samples) > 0
        return settings.local and (settings.test or held_out)

    def measure(
        self,
        server: Server,
        *,
        before: Server | None = None,
        cohort: Sequence[tuple[int, float]] = (),
        with_capacities: bool = False,
    ) -> Measured:
        """The metric of a server's state on test and validation samples, on each client's own, and at each capacity.

        `before` is the server as the last round began, and `cohort` who was to train in it: they decide which sub-model
        stands for a capacity. Without `before` the method's memory is taken as the server holds it now, and without a
        cohort it is the one that the settings draw. With `with_capacities` the capacities of the settings are measured
        after any round, else only where they are due.
        """
        with seeded(torch_seed(self.settings.seed, "evaluation", server.round), self.device):
            return self._measure(server, before=before, cohort=cohort, with_capacities=with_capacities)

    def _measure(
        self,
        server: Server,
        *,
        before: Server | None,
        cohort: Sequence[tuple[int, float]],
        with_capacities: bool,
    ) -> Measured:
        settings, data, found = self.settings.evaluation, self.data, {}
        model = self.prepare(self.model, server.state)
        score = partial(scores.score, objective=self.objective, by_class=self.is_last(server.round))
        kept: Tensor | None = None
        if settings.test:
            found["global"], kept = score(model, data, data.test, settings, self.device)
        if len(held := self.partition.validation):
            found["validation"], _ = score(model, data, data.train, settings, self.device, held)
        local = self._local(kept) if self.is_local else None
        return self.describe(server, found, local, before=before, cohort=cohort, with_capacities=with_capacities)

    def prepare(self, model: nn.Module, state: Mapping[str, Tensor], *, precise: bool = False) -> nn.Module:
        """The model with this state, ready to be measured; `precise` is for those who take it away."""
        settings, partition = self.settings.evaluation, self.partition
        samples = partition.trained_on if len(partition.validation) or len(partition.public) else None
        precision = "float32" if precise else self.settings.precision
        with autocast(self.device, precision):  # statistics as in training; the scores are more precise
            return scores.prepare(model, state, self.data, settings, self.device, samples)

    def validate(self, model: nn.Module) -> float:
        """How well a model does on the validation samples as it is, the higher the better; it stays in its mode.

        Batch norms that collect statistics before they are measured have none yet: they take those of the batch.
        """
        training, settings = model.training, replace(self.settings.evaluation, norm="batch")
        model.eval()
        with autocast(self.device, self.settings.precision):
            found, _ = scores.score(
                model,
                self.data,
                self.data.train,
                settings,
                self.device,
                self.partition.validation,
                objective=self.objective,
            )
        model.train(training)
        return self.objective.metric.measure.sign * found.value

    def describe(
        self,
        server: Server,
        found: Mapping[str, Score],
        local: LocalScores | None,
        *,
        before: Server | None = None,
        cohort: Sequence[tuple[int, float]] = (),
        with_capacities: bool = False,
    ) -> Measured:
        """What was found, as a line of the metrics has it; what follows `local` is as for `measure`.

        The scores are of the test set ("global") and of the validation samples ("validation"), where measured.
        """
        metric = self.objective.metric.name
        line: dict[str, Any] = {} if metric == ACCURACY.name else {"metric": self.objective.metric.measure.facts()}
        for name, score in found.items():
            line |= {f"{name}_{metric}": score.value, f"{name}_loss": score.loss}
        first = next(iter(found.values()))
        if self.is_last(server.round) and first.by_class is not None:
            line["class_accuracy"] = first.by_class
        if local is not None:
            line |= {f"local_{metric}": local.mean, "local_quantiles": local.quantiles}
        if self._capacities and (with_capacities or self.measures_capacities(server.round)):
            line |= self._by_capacity(server, self.last_round(server, before=before, cohort=cohort))
        return Measured(line, local)

    @property
    def _capacities(self) -> list[float]:
        """The capacities of the settings that there are models of; where clients hold the whole one, only that."""
        asked = self.settings.evaluation.capacities
        return [capacity for capacity in asked if capacity == 1] if self.method.holds_all else asked

    def _by_capacity(self, server: Server, last: LastRound) -> dict[str, Any]:
        """What the sub-models of the settings' capacities score, each by itself and one of each capacity together."""
        capacities, metric = self._capacities, self.objective.metric
        standing: list[tuple[str, float]] = []  # the sub-models that stand for the capacities, where they are slices
        if self.method.slices:
            indexes = [representative_index(self.method, self.plan, capacity, last) for capacity in capacities]
            widths = [1.0 if index.is_whole else each for index, each in zip(indexes, capacities, strict=True)]
            standing = [(index.key, width) for index, width in zip(indexes, widths, strict=True)]
        answers: dict[tuple[str, float], dict[str, Tensor]] = {}

        def measure(part: Part, capacity: float) -> dict[str, float]:
            found, logits = self._scores_of(server.state_at(capacity), part)
            if (part.key, capacity) in standing:  # those of all draws would take much memory
                answers[part.key, capacity] = logits
            return found

        line: dict[str, Any] = by_capacity(
            self.method,
            self.plan,
            capacities,
            last=last,
            metric=metric.name,
            measure=measure,
            draws=self.settings.evaluation.draws if self.is_last(server.round) else 1,  # they take their time
        )
        if len(answers) > 1:
            line |= self._together([answers[at] for at in standing])
        return line

    def _together(self, answers: Sequence[Mapping[str, Tensor]]) -> dict[str, Any]:
        """What sub-models, one of each capacity, score together by their logits: all of them, and those that validation
        samples choose where there are some beside the test set."""
        metric, line = self.objective.metric, dict[str, Any]()
        asked = {name: some for name, some in self._asked().items() if has_one_label(self.objective, some[0])}

        def score(name: str, numbers: Sequence[int]) -> float:
            return scores.score_together([answers[number][name] for number in numbers], metric, *asked[name])

        for name in asked:
            line[key_of(ALL, name)] = score(name, range(len(answers)))
        held = f"validation_{metric.name}"
        if held in asked and metric.name in asked:
            chosen = scores.choose_by_score([each[held] for each in answers], metric, *asked[held])
            line["chosen_capacities"] = [self._capacities[number] for number in chosen]
            line[key_of(CHOSEN, metric.name)] = score(metric.name, chosen)
        return line

    def _asked(self) -> dict[str, tuple[Split, Tensor | None]]:
        """The samples that sub-models are measured on, by the name of the score: a split, and which of it (None: all).

        The test set and, where there are some, the validation samples, which stand for it where it is not seen.
        """
        data, metric, held = self.data, self.objective.metric.name, (self.data.train, self.partition.validation)
        if not self.settings.evaluation.test:
            return {metric: held}
        tested: dict[str, tuple[Split, Tensor | None]] = {metric: (data.test, None)}
        return tested | {f"validation_{metric}": held} if len(held[1]) else tested

    def last_round(
        self, server: Server, *, before: Server | None = None, cohort: Sequence[tuple[int, float]] = ()
    ) -> LastRound:
        """What decides which sub-model stands for a capacity; `before` and `cohort` as for `measure`."""
        round = max(0, server.round - 1)
        then = server if before is None else before
        drawn = cohort or self.cohort(round)
        # Slices were chosen as the round began, and are cut now. Models that the method keeps are those it has now.
        memory = then.memory if self.method.slices else server.memory
        return LastRound(round, drawn, self.settings.seed, memory, then.state, server.clients)

    def _local(self, kept: Tensor | None) -> LocalScores:
        """What the prepared model scores on each client's own test data; `kept` is of the test set, if measured."""
        partition, mask = self.partition, self.settings.training.mask
        if kept is not None and (partition.tested_on == "test" or not len(partition.test.samples)):
            return scores.local_scores(kept, partition, self.data, mask, self.objective)
        split = self.data.train.take(partition.test.samples)
        settings = self.settings.evaluation
        _, kept = scores.score(self.model, self.data, split, settings, self.device, objective=self.objective)
        return scores.local_scores_of(kept, partition, self.data, mask, self.objective)

    def _scores_of(self, state: Mapping[str, Tensor], part: Part) -> tuple[dict[str, float], dict[str, Tensor]]:
        """What this part scores on the test and validation samples, and its logits where these have one label."""
        small = part.module(self.model, self.plan).to(self.device)
        self.prepare(small, part.cut(state, self.plan))
        asked, settings = self._asked(), self.settings.evaluation
        found = {
            name: scores.score(small, self.data, split, settings, self.device, samples, objective=self.objective)
            for name, (split, samples) in asked.items()
        }
        logits = {name: kept for name, (_, kept) in found.items() if has_one_label(self.objective, asked[name][0])}
        return {name: score.value for name, (score, _) in found.items()}, logits
