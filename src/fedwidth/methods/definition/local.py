"""What a method may change about a client's training: its local rule.

Plain training is SGD (or Adam) on the loss. A rule is a few functions that say what differs; engines call them, so that
one text trains a module, a flat vector [n] and a stack of clients [clients, n]. FedProx is:

    def gradient(g, w, start, sent, at):
        return g.add(w - start, alpha=at.options["mu"])

All tensors a rule is given have one shape, or broadcast: one tensor of a model, or all of them in one vector, of one
client or of many. So a rule must be element-wise, and cannot know which tensor it is looking at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from fedwidth.errors import OptionError
from fedwidth.plan.plan import Plan

if TYPE_CHECKING:
    from fedwidth.methods import Method

Memory = Mapping[str, Tensor]
"""What is remembered between rounds, by name; `{prefix}.{tensor}` if it has the shape of one of the model's tensors."""

Sent = Mapping[str, Tensor]
"""What a client was sent beside its sub-model, by name, in the shape of what it trains."""


@dataclass(frozen=True)
class LocalMoment:
    """What a local rule may depend on besides tensors.

    Where many clients are trained at once, numbers that differ between them are tensors of shape [clients, 1].
    """

    options: Mapping[str, Any]
    capacity: float
    rate: float | Tensor = 0.0
    """The learning rate."""
    steps: float | Tensor = 1
    """How many steps the client takes in the round, over all its epochs."""


@dataclass(frozen=True)
class Sending:
    """For whom and for which round a rule says what is sent."""

    client: int
    round: int
    seed: int
    clients: int
    """How many clients there are in all, whether they take part in this round or not."""
    options: Mapping[str, Any]
    public: int = 0
    """How many public samples there are."""


class ClientPass(Protocol):
    """One client's pass through its model, for rules with a loss of their own."""

    options: Mapping[str, Any]
    capacity: float
    width: float
    """The width this step trains: one that was drawn from the rule's `widths`, or else the client's capacity."""
    given: Mapping[str, Tensor]
    """What the client was given as it is, by name."""
    rate: float
    """The learning rate of the round."""
    rows: Mapping[str, Tensor]
    """What the client was given that has a row for each of its own samples (`Local.rows`): those of the batch at
    hand."""

    def logits(self, inputs: Tensor) -> Tensor:
        """The output of the client's model."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The plain loss: cross entropy, with logits of absent classes masked as the settings say."""

    def mean(self, values: Tensor, targets: Tensor) -> Tensor:
        """The mean of one value for each target, over the targets that count (text that has ended does not)."""

    def narrower(self, width: float, inputs: Tensor) -> Tensor:
        """The output of a narrower sub-model inside the client's own; gradients reach the client's weights."""

    def network(self) -> nn.Module:
        """The client's own module, for losses that look at its weights."""

    def repeated(self, step: Callable[..., Tensor], optimiser: Optimizer) -> Callable[..., Tensor]:
        """The same step, which trains the client's own module, to be taken many times: on a GPU it is captured.

        It is called with a batch, returns one tensor and asks nothing of the numbers it computes.
        """

    def public_inputs(self, samples: Tensor) -> Any:
        """The inputs of public samples, by their numbers."""

    def own_samples(self, places: Tensor) -> tuple[Any, Any]:
        """The inputs and targets of some of the client's own samples, by their places, not augmented."""

    def number_of_samples(self) -> int:
        """How many samples the client has of its own."""

    def generator(self, purpose: str) -> np.random.Generator:
        """A random generator for this client, round and purpose alone; it goes on from step to step."""


Gradient = Callable[[Tensor, Tensor, Tensor, Sent, LocalMoment], Tensor]
Loss = Callable[[ClientPass, Tensor, Tensor], Tensor]
Sends = Callable[[Memory, Memory, Sending], Mapping[str, Mapping[str, Tensor] | float]]
Gives = Callable[[Memory, Sending], Mapping[str, Tensor]]
Reports = Callable[[Tensor, Tensor, Sent, LocalMoment], Mapping[str, Tensor]]

FULL_GRADIENT = "full_gradient"
"""The name under which a rule that asks for it finds the gradient over all of the client's data, at the start."""


@dataclass(frozen=True)
class Local:
    """How clients train, where that is more than minimising the loss. Every field is optional."""

    gradient: Gradient | None = None
    """A function (gradient, weights, weights at the start, what was sent, moment) -> the gradient that is clipped and
    given to the optimiser. A step is captured once for many clients and rounds: what differs between them must come as
    a tensor."""
    loss: Loss | None = None
    """A function (pass, inputs, targets) -> the loss of a batch. Means over samples are taken by `pass.loss` and
    `pass.mean`: a stack fills short batches up with samples whose targets do not count."""
    steady: bool = False
    """True for a loss that does the same in every step of one width (it draws nothing itself), so that it can be
    captured and, without `widths`, stacked."""
    widths: Callable[[float, Mapping[str, Any]], Sequence[float]] | None = None
    """A function (capacity, options) -> widths at or below the capacity, of which every step of a client draws one; the
    loss finds it as `pass.width`."""
    sends: Sends | None = None
    """A function (the server's memory, the client's own, for whom and when) -> what the client is sent beside its
    sub-model: numbers, or tensors of the full model's shapes, of which the client gets its part."""
    gives: Gives | None = None
    """A function (the server's memory, for whom and when) -> tensors of any shape that the client is given as they are:
    numbers of samples, labels. A rule finds them in `pass.given`."""
    rows: tuple[str, ...] = ()
    """The names of what it is given that has a row for each of the client's own samples, in their order. A loss finds
    those of its batch in `pass.rows`, and a stack or a captured step takes them along with the targets."""
    before: Callable[[ClientPass], int] | None = None
    """A function (pass) -> samples it has trained with: what the client does before it trains on its own samples."""
    answers: Callable[[ClientPass], Mapping[str, Tensor]] | None = None
    """A function (pass) -> what the client sends in place of its model, after training: tensors by name, with the
    numbers of the samples it answers for under "samples". The model then stays with the client, which keeps it from
    round to round, and the method must `collect` updates and hand out an `OwnModel`."""
    reports: Reports | None = None
    """A function (weights, weights at the start, what was sent, moment) -> what the client reports beside its
    sub-model."""
    adds: tuple[str, ...] = ()
    """The reports that go to the server, which adds them up (`Closing.reported`)."""
    own: tuple[str, ...] = ()
    """The reports that stay with the client: they replace its memory of that name, for the part of the model that it
    held. `sends` gives the memory back to the client under the same name. A client that was never drawn remembers
    nothing."""
    rests: Callable[[Plan, int], frozenset[str]] | None = None
    """A function (plan, round) -> the parameters that clients leave as they are in this round, though the model trains
    them: one factor of adapters, say. None: clients train all that the model does."""
    full_gradient: Callable[[Mapping[str, Any]], bool] = lambda _: False
    """Whether, with these options, reports need the gradient at the start over all of the client's data. That costs one
    more pass over the data before training."""
    classes: Callable[[Mapping[str, Any]], bool] = lambda _: False
    """True for options with which the loss takes answers for logits of classes: then a run must have some."""
    refuses: Callable[[Method], str | None] = lambda _: None
    """A function of a method -> why its sub-models cannot be trained by this rule, or None if they can."""

    def __post_init__(self) -> None:
        if (self.adds or self.own) and self.reports is None:
            raise OptionError("a local rule that adds or keeps something needs a function `reports` that says what")
        if self.widths is not None and self.loss is None:
            raise OptionError("a local rule that draws widths needs a function `loss` that trains them")
        if self.answers is not None and self.reports is not None:
            raise OptionError(
                "a local rule whose clients send answers keeps their models, and has no reports beside them"
            )
        if "targets" in self.rows:
            raise OptionError("rows of what clients are given come with the targets of a batch: name them otherwise")
        if self.reports is not None and not (self.adds or self.own):
            raise OptionError("a local rule with reports must name them: those it `adds`, and those that are its `own`")


def under(memory: Memory, prefix: str) -> dict[str, Tensor]:
    """The entries of a memory whose names begin with `{prefix}.`, without the prefix.

    >>> import torch
    >>> under({"control.a": torch.zeros(1), "clients": torch.ones(1)}, "control")
    {'a': tensor([0.])}
    """
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in memory.items() if name.startswith(start)}


def named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors with `{prefix}.` before their names: the inverse of `under`."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}
