"""What the client of a Flower app needs to train at its width: three functions, each one line in the app.

introduce(app)                        the node says what it can afford when the server asks
model = fitted(Net(), msg, EXAMPLE)   the module of that width, filled with what the message holds
loss = local_loss(model, x, y)        where the method trains with a loss of its own, in place of the app's
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from fedwidth.core.index import Index
from fedwidth.core.narrow import skeleton
from fedwidth.core.submodel import state_of
from fedwidth.devices.capacity import parse_capacity
from fedwidth.errors import ClientError, OptionError
from fedwidth.flower.strategy.orders import KEY, Order
from fedwidth.methods import Beginning, LocalMoment, Method
from fedwidth.models import set_scaler
from fedwidth.objectives import CLASSIFICATION
from fedwidth.plan import trace
from fedwidth.plan.plan import Plan
from fedwidth.randomness import numpy_generator
from fedwidth.training.loss import Pass, absent_classes, loss_of
from fedwidth.training.narrower import Narrower
from fedwidth.training.rule import Rule
from fedwidth.training.skeletons import fill


def introduce(app: ClientApp, capacity: Callable[[Context], float | str] | None = None) -> ClientApp:
    """Let the app answer the Strategy's question what its node can afford; returns the app.

    Unless a function says otherwise, that is `capacity` in the node's config; else, as in a simulation, where nodes
    have no config of their own, that of its `partition-id` in `capacities` of the run config ("1,1/4": one after the
    other, from the beginning again and again); else 1.
    """

    @app.query(KEY)
    def say(message: Message, context: Context) -> Message:
        facts = {"capacity": str((capacity or stated_capacity)(context))}
        number = context.node_config.get("client", context.node_config.get("partition-id"))
        return Message(
            RecordDict({KEY: ConfigRecord(facts if number is None else {**facts, "client": int(number)})}),
            reply_to=message,
        )

    return app


def stated_capacity(context: Context) -> float:
    """The capacity that a node's config or the run config states."""
    if "capacity" in context.node_config:
        return parse_capacity(str(context.node_config["capacity"]))
    listed = [parse_capacity(text) for text in str(context.run_config.get("capacities", "1")).split(",")]
    return listed[int(context.node_config.get("partition-id", 0)) % len(listed)]


def fitted(
    model: nn.Module,
    message: Message,
    example: Any,
    *,
    labels: Iterable[int] | None = None,
    mask: str = "zero",
    rate: float = 0.0,
    method: Method | None = None,
) -> nn.Module:
    """The module of the width that the server has sent, filled with what it has sent; `model` is not changed.

    `model` is the app's own at full width and `example` inputs that it takes, as of `fedwidth.trace`. Where the method
    changes gradients (FedProx), the module's parameters do that by themselves; where it has a loss of its own, training
    must call `local_loss`. `labels` are the classes that the device has samples of: `local_loss` masks the logits of
    others, as `mask` says ("zero" or "inf", HeteroFL). `rate` is the learning rate, for rules that look at it.
    `method` is the app's own method, where it is none of the package's.
    """
    order = Order.read(next(iter(message.content.config_records.values()), ConfigRecord()).get(KEY))
    found, plan = order.method(method), trace(model, example)
    module = _module(model, plan, found, order)
    arrays: ArrayRecord = next(iter(message.content.array_records.values()))
    fill(module, {name: torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()})
    set_scaler(module, order.capacity)
    device = next(model.parameters()).device
    module.to(device)
    rule = Rule.of(found)
    if rule.local.gradient is not None:
        _change_gradients(module, rule, LocalMoment(rule.options, order.capacity, rate))
    absent = None
    if labels is not None:
        name, dim = next(iter(plan.label_axes), ("", 0))
        if not name:
            raise OptionError("labels are for models whose last layer has a row for each class, and this plan has none")
        own = torch.tensor(sorted({int(label) for label in labels}))
        absent = absent_classes(own, plan.shapes[name][dim], mask, device)
    known = (module, absent, mask, rule.options, order.capacity, CLASSIFICATION, module)
    module.__dict__[PASS] = DevicePass(*known, rule=rule, method=found, order=order, plan=plan, model=model, rate=rate)
    if rule.local.loss is not None:
        module.register_forward_pre_hook(partial(_refuse_other_losses, found.title))
    return module


def local_loss(model: nn.Module, inputs: Any, targets: Tensor) -> Tensor:
    """The loss of a batch as the method has it: cross entropy for most, with logits masked where labels are known."""
    own: DevicePass | None = model.__dict__.get(PASS)
    if own is None:
        raise OptionError("local_loss takes the module that fitted(…) has made")
    return own.loss_of(inputs, targets)


PASS = "fedwidth_pass"
"""The attribute of a fitted module that knows the method's local rule; it is no part of the module's state."""


@dataclass
class DevicePass(Pass):
    """A device's pass through the module that was fitted to it."""

    rule: Rule = field(kw_only=True)
    method: Method = field(kw_only=True)
    order: Order = field(kw_only=True)
    plan: Plan = field(kw_only=True)
    model: nn.Module = field(kw_only=True)
    """The full model, of which only shapes are used."""
    inside: bool = field(default=False, init=False)
    """Whether the module is being called by the rule's own loss."""
    _generators: dict[str, np.random.Generator] = field(default_factory=dict, init=False)
    _narrower: dict[float, Narrower] = field(default_factory=dict, init=False)

    def loss_of(self, inputs: Any, targets: Tensor) -> Tensor:
        """The rule's loss of a batch, at a width that is drawn first where the rule has several."""
        widths = self.rule.local.widths
        if widths is not None:
            self.width = float(self.generator("width").choice(list(widths(self.capacity, self.options))))
        self.inside = True
        try:
            return loss_of(self.rule, self, inputs, targets)
        finally:
            self.inside = False

    def generator(self, purpose: str) -> np.random.Generator:
        """Randomness of this client, round and purpose alone."""
        order = self.order
        if purpose not in self._generators:
            self._generators[purpose] = numpy_generator(order.seed, purpose, order.round, order.client)
        return self._generators[purpose]

    def narrower(self, width: float, inputs: Any) -> Any:
        """Forward through the sub-model of this width, whose weights are slices of the client's."""
        if width not in self._narrower:
            inner, outer = self._index(width), self._index(self.capacity)
            device = next(self.module.parameters()).device
            self._narrower[width] = Narrower(inner.module(self.model, self.plan).to(device), inner, outer, device)
        found = self._narrower[width]
        set_scaler(found.module, width)
        return self.objective.output(found(self.module, inputs))

    def _index(self, width: float) -> Index:
        order = self.order
        found: Index = self.method.select(self.plan, capacity=width, round=order.round, seed=order.seed)
        return found


def _module(model: nn.Module, plan: Plan, method: Method, order: Order) -> nn.Module:
    """A module of the size that was sent, not yet filled."""
    if order.counts is not None:
        return skeleton(model, plan, order.counts)
    # Parts of another kind are made as the server made them in the first round: of equal size, other values.
    beginning = Beginning(state_of(model), plan, order.enrolled, order.seed, method.values, model=model)
    state = method.first_state(beginning)
    part = method.select(
        plan,
        capacity=order.capacity,
        round=order.round,
        client=order.place,
        clients=order.clients,
        seed=order.seed,
        number=order.client,
        memory=method.first_memory(beginning),
        state=state,
    )
    made: nn.Module = part.module(model, plan)
    return made


def _change_gradients(module: nn.Module, rule: Rule, at: LocalMoment) -> None:
    """Let every parameter add the rule's term to its gradient, once in each backward pass."""
    change = rule.local.gradient
    assert change is not None

    def changed(parameter: nn.Parameter, start: Tensor, gradient: Tensor) -> Tensor:
        with torch.no_grad():
            return change(gradient, parameter.detach(), start.to(gradient.device), {}, at)

    for parameter in module.parameters():
        if parameter.requires_grad:
            start = parameter.detach().clone()
            parameter.register_hook(partial(changed, parameter, start))  # type: ignore[no-untyped-call]


def _refuse_other_losses(title: str, module: nn.Module, _: Any) -> None:
    if module.training and not module.__dict__[PASS].inside:
        raise ClientError(
            f"{title} trains with a loss of its own: call local_loss(model, inputs, targets) for the app's loss"
        )
