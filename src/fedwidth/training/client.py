"""Local training of one sub-model on one client's data, one client at a time.

A `Trainer` holds what all clients share (model, data, settings) and one skeleton module per size; `train` fills the
skeleton with a client's sub-model, trains it and returns the update. The step itself stands in `step`, its loss in
`loss`. All randomness comes from (seed, round, client, purpose).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from fedwidth.core.answers import ANSWERS
from fedwidth.core.index import Index
from fedwidth.core.part import Part
from fedwidth.core.submodel import take
from fedwidth.core.updates import Update, check_finite, weigh
from fedwidth.data import Data, Partition
from fedwidth.devices.capacity import Capacities
from fedwidth.gpu import autocast
from fedwidth.methods import Beginning, Method, Sending, Task
from fedwidth.methods.shared.repeated import Graphs
from fedwidth.models import set_scaler
from fedwidth.objectives import CLASSIFICATION, Objective
from fedwidth.plan.plan import Plan
from fedwidth.plan.trace import tensors_of
from fedwidth.randomness import seed_all, torch_generator, torch_seed
from fedwidth.settings import Settings
from fedwidth.training.batches import batches, count_steps, one_epoch, order_generator
from fedwidth.training.loss import absent_classes, loss_of, with_rows
from fedwidth.training.module_pass import ModulePass
from fedwidth.training.narrower import draw_widths
from fedwidth.training.rule import Rule
from fedwidth.training.schedule import learning_rate
from fedwidth.training.skeletons import Skeleton, fill, make_skeleton, takes_channels_last, with_channels_last
from fedwidth.training.step import report_of, take_step
from fedwidth.training.weights import Weights

State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Trained:
    """A client's update and what it reports beside it."""

    update: Update
    passes: int
    """Training samples seen, each as often as it was seen."""
    loss: float
    """Mean over the local steps."""
    kept: Mapping[str, State] = field(default_factory=dict)
    """What the client keeps for itself, by name and tensor: its part of its memory."""


@dataclass
class Trainer:
    """Trains sub-models of one model on the clients of one partition."""

    model: nn.Module
    plan: Plan
    data: Data
    partition: Partition
    method: Method
    settings: Settings
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    objective: Objective = CLASSIFICATION
    public: Data | None = None
    """Public data, for methods whose clients look at it."""
    threads: int = 1
    """How many threads of a processor train: more than one on real devices alone, which may say so."""
    _skeletons: dict[Hashable, Skeleton] = field(default_factory=dict, repr=False)

    def train(self, sub: State, task: Task, round: int, sent: Mapping[str, State | float] | None = None) -> Trained:
        """Train the client's sub-model; the returned tensors are the skeleton's own, valid until the next call.

        `sent` is what the client was sent beside it, cut like the sub-model; where it is left out, it is cut here.
        The generators of Python and NumPy are seeded; they are kept once a round (`Engine.run`), which costs more.
        """
        settings, seed = self.settings.training, self.settings.seed
        pass_, tensors = self.place(sub, task, round)
        passes = self.lesson(pass_)
        module, rate, samples = pass_.module, pass_.rate, self.partition[task.client]
        weights = self._weights(pass_, self.cut_sent(task) if sent is None else sent, rate)
        weights.local_steps = float(count_steps(len(samples), settings))
        augments = settings.augment and self.data.transform.augments
        draws = torch_generator(seed, "augment", round, task.client) if augments else None
        precise = torch.promote_types(torch.float32, next(module.parameters()).dtype)
        losses, steps = torch.zeros((), dtype=precise, device=self.device), 0
        if self.rule.probes and self.rule.local.before is not None:
            sub = {name: tensor.clone() for name, tensor in tensors.items()}

        widths = draw_widths(self, task, round)

        def step(places: Tensor) -> Tensor:
            batch, pass_.width = samples[places], next(widths)
            inputs, targets = self.data.batch(
                self.data.train, batch, train=augments, generator=draws, device=self.device
            )
            return self._step(pass_, weights, inputs, with_rows(self.rule, targets, pass_.given, places))

        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            seed_all(dropout_seed(seed, round, task.client), self.device)
            everyone = torch.arange(len(samples))
            if self.rule.probes:
                for batch in batches(everyone, one_epoch(settings), order_generator(seed, round, task.client)):
                    weights.rate, weights.share = 0.0, len(batch) / len(samples)
                    step(batch)
                    passes += len(batch)
                fill(module, sub)  # what layers counted on the way is forgotten, and so is the momentum
                weights.make_moments(settings)
                weights.rate, weights.share, weights.steps = rate, 0.0, 0.0
            for batch in batches(everyone, settings, order_generator(seed, round, task.client)):
                losses += step(batch)
                steps += 1
                passes += len(batch)
        self.settle(task.part)
        weight, rows = weigh_client(self, task, steps)
        if self.rule.local.answers is not None:
            update, kept_model = self.answer(pass_, weight)
            return Trained(update, passes, float(losses) / steps, kept_model)
        reports = {
            name: dict(zip(pass_.names, found, strict=True))
            for name, found in report_of(weights, self.rule, task.capacity).items()
        }
        kept = {name: reports.pop(name) for name in self.rule.local.own if name in reports}
        for tensors_kept in kept.values():
            check_finite(tensors_kept, f"client {task.client}")
        own = {name: tensor for name, tensor in tensors.items() if name not in self.plan.untrained}
        update = Update(own, task.part, weight, labels=rows, client=task.client, reports=reports)
        return Trained(update, passes, float(losses) / steps, kept)

    def place(self, sub: State, task: Task, round: int) -> tuple[ModulePass, State]:
        """Put a client's sub-model into the skeleton of its size: the client's pass, and the skeleton's tensors."""
        settings, module = self.settings.training, self.fresh(task.part)
        tensors = fill(module, sub)
        self._let_rest(module, task.part, round)
        if settings.scaler:
            set_scaler(module, task.width)
        pass_ = ModulePass.of(self, module, task, round)
        pass_.rate = learning_rate(settings, round, self.settings.rounds)
        return pass_, tensors

    def lesson(self, pass_: ModulePass) -> int:
        """Let a client do what its rule does before it trains on its own samples; returns how many it has seen."""
        if self.rule.local.before is None:
            return 0
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            seed_all(torch_seed(self.settings.seed, "lesson", pass_.round, pass_.task.client), self.device)
            seen = self.rule.local.before(pass_)
        self.settle(pass_.task.part)
        return seen

    def _let_rest(self, module: nn.Module, part: Part, round: int) -> None:
        """Train the parameters that the model trains, but for those that the part, or in this round the rule, lets
        rest."""
        rests, trained = self.rule.local.rests, getattr(part, "trained", None)
        if rests is None and trained is None:
            return
        names = self.trained if trained is None else self.trained & trained(self.plan)
        resting = frozenset() if rests is None else rests(self.plan, round)
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name in names and name not in resting).grad = None

    def answer(self, pass_: ModulePass, weight: float) -> tuple[Update, dict[str, dict[str, Tensor]]]:
        """What a client sends whose model stays with it, its answers; and what it keeps, the model."""
        task, answer = pass_.task, self.rule.local.answers
        assert answer is not None
        with torch.no_grad():
            pass_.module.eval()
            answers = answer(pass_)
        tensors, _ = tensors_of(pass_.module)
        check_finite(tensors, f"client {task.client}")
        kept = {task.part.kept_as: {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}}
        return Update({}, task.part, weight, client=task.client, reports={ANSWERS: answers}), kept

    def cut_sent(self, task: Task) -> dict[str, State | float]:
        """What the client is sent beside its sub-model, cut like it."""
        return {
            name: value
            if isinstance(value, (int, float))
            else {tensor: take(full, task.index, tensor) for tensor, full in value.items()}
            for name, value in task.sends.items()
        }

    def example_sends(self, state: State) -> Mapping[str, State | float]:
        """What the first client would be sent in the first round: names and kinds are those of every round."""
        if self.rule.local.sends is None:
            return {}
        memory = self.method.first_memory(Beginning(state, self.plan, options=self.method.values))
        at = Sending(0, 0, self.settings.seed, len(self.partition), self.method.values)
        return self.rule.local.sends(memory, {}, at)

    def example_parts(self, state: State) -> list[Part]:
        """What clients may hold in the first round, to find out whether an engine can train it: the whole model, or
        where sub-models are no slices that of the smallest device, and one of every architecture."""
        if self.method.slices:
            return [Index.whole(self.plan)]
        devices = self.settings.devices
        enrolled = Capacities.parse(devices.capacities).enrolled(devices.excluded)
        beginning = Beginning(state, self.plan, enrolled, self.settings.seed, self.method.values)
        memory = self.method.first_memory(beginning)
        kinds = {architecture: capacity for capacity, architecture in self.method.architectures.items()}
        capacities = dict.fromkeys([min(enrolled), *kinds.values()])
        return [self.method.select(self.plan, capacity=each, memory=memory, state=state) for each in capacities]

    def _weights(self, pass_: ModulePass, sent: Mapping[str, State | float], rate: float) -> Weights:
        """The sub-model in the skeleton, as the step takes it."""
        values = [parameter.detach() for parameter in pass_.parameters]
        alone = (number for number, each in enumerate(pass_.parameters) if not getattr(each, "decays", True))
        weights = Weights(values, [None] * len(values), rate=rate, learning_rate=rate, undecayed=frozenset(alone))
        weights.make_moments(self.settings.training)
        if self.rule.keeps_start:
            weights.start = [value.clone() for value in values]
        if self.rule.probes:
            weights.gathered = [torch.zeros_like(value) for value in values]
        for name, given in sent.items():
            if isinstance(given, (int, float)):
                weights.sent[name] = [values[0].new_tensor(float(given))]
            else:
                weights.sent[name] = [given[tensor].to(self.device) for tensor in pass_.names]
        return weights

    def _step(self, pass_: ModulePass, weights: Weights, inputs: Any, targets: Any) -> Tensor:
        """One local step; its loss."""
        if self.channels_last:
            inputs = with_channels_last(inputs)
        weights.gradients = []  # those of the last step are not to lie beside this one's activations
        for parameter in pass_.parameters:
            parameter.grad = None
        with autocast(self.device, self.settings.precision):
            loss = loss_of(self.rule, pass_, inputs, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        weights.gradients = [parameter.grad for parameter in pass_.parameters]
        with torch.no_grad():
            take_step(weights, self.rule, self.settings.training, pass_.capacity)
        return loss.detach()

    def absent(self, client: int, device: torch.device | None = None) -> Tensor | None:
        """True for the classes a client lacks, on a device; None where nothing is masked."""
        mask = self.settings.training.mask
        if mask == "none":  # then labels need not be known
            return None
        return absent_classes(self.partition.labels[client], self.data.classes, mask, device or self.device)

    @cached_property
    def trained(self) -> frozenset[str]:
        """The names of the parameters that are trained, tied ones once."""
        return frozenset(name for name, parameter in self.model.named_parameters() if parameter.requires_grad)

    @cached_property
    def rule(self) -> Rule:
        """How clients train."""
        return Rule.of(self.method)

    def skeleton(self, part: Part) -> nn.Module:
        """The module of a part's size, in training mode; made once and refilled for every client."""
        return self._skeleton(part).module.train()

    def fresh(self, part: Part) -> nn.Module:
        """The module of a part's size for a client that begins: without what others have left in its attributes."""
        self._skeleton(part).attributes.put_back()
        return self.skeleton(part)

    def settle(self, part: Part) -> None:
        """Write what a part's module holds in place of its buffers into these."""
        self._skeleton(part).buffers.settle()

    def _skeleton(self, part: Part) -> Skeleton:
        size: Hashable = getattr(part, "one_module", None) or part.size
        if size not in self._skeletons:
            made = make_skeleton(part, self.model, self.plan, device=self.device, channels_last=self.channels_last)
            self._skeletons[size] = Skeleton.of(made)
        return self._skeletons[size]

    @cached_property
    def graphs(self) -> Graphs:
        """Steps of the rule's own that are captured, of one client at a time."""
        return Graphs.on(self.device)

    @cached_property
    def channels_last(self) -> bool:
        """Whether images lie with their channels last in memory: on processors, convolution and pooling are faster."""
        return self.device.type == "cpu" and self.takes_channels_last

    @cached_property
    def takes_channels_last(self) -> bool:
        """Whether the model convolves, and all there are compute with their channels last in memory."""
        others = dict.fromkeys(self.method.architectures.values())
        networks = [(self.model, self.plan), *((each.filled(), each.plan) for each in others)]
        asked = partial(
            takes_channels_last, data=self.data, device=self.device, freezes=self.method.freezes, threads=self.threads
        )
        return all(asked(net, plan) for net, plan in networks)


def weigh_client(trainer: Trainer, task: Task, steps: int) -> tuple[float, Tensor | None]:
    """What a client's update weighs, and the classes whose rows it counts for; None: all of them."""
    server, client = trainer.settings.server, task.client
    samples = trainer.partition.size(client)
    weight = weigh(server.weighting, samples=samples, index=task.part, updates=steps)
    return weight, trainer.partition.labels[client] if server.label_rows else None


def dropout_seed(seed: int, round: int, client: int) -> int:
    """The seed of what a client's layers draw in a round."""
    return torch_seed(seed, "dropout", round, client)
