"""Fed-ET: small models of many kinds teach a large one on the server, and share their last layers (Cho et al. 2022).

Devices of different sizes train different networks: by default the widths of the run's model, each a model of its own,
or whatever architectures the run names for them. The server has the full model, which may be larger than all of them.
All end in the same representation layers, here the last one; where a model has other features than the server's, it has
a projection before that layer, so that its shape is the same. After local training

    1  the server's representation layers are the mean of all clients'
    2  on public samples without labels, clients' logits s_k are weighed by their confidence, the variance over classes:
           y* = argmax of sum over k of a_k s_k,   a_k = var(s_k) / sum of var(s_l)
       Those who would have said otherwise are heard too, weighed in the same way: s_div
    3  the server minimises CE(y*) + lambda KL(softmax(s_div) || softmax(own))
    4  the model of each width or architecture is the mean of its clients', with the server's representation layers
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.optim import SGD

from fedwidth.core.architectures import GLOBAL, Held, held_at
from fedwidth.methods.definition import Closing, Method, at_least_zero, count, named, under
from fedwidth.methods.shared.distillation import Lesson, teach
from fedwidth.methods.shared.projection import choose, init, shared_names
from fedwidth.methods.shared.width_models import all_held, filled, kept_as, teachers, tensors_of


@dataclass(frozen=True)
class Consensus:
    """What clients say of samples together."""

    label: Tensor
    """The class y* of each sample."""
    dissent: Tensor
    """The probabilities, softmax(s_div), of those who would have said another class; anything where nobody would."""
    heard: Tensor
    """Whether there is somebody who would."""

    def packed(self) -> Tensor:
        """All of it as one tensor [samples, …, 2 + classes], as lessons hold it."""
        parts = self.label[..., None].to(self.dissent), self.heard[..., None].to(self.dissent), self.dissent
        return torch.cat(parts, -1)

    @classmethod
    def unpacked(cls, packed: Tensor) -> Consensus:
        """The inverse of `packed`."""
        return cls(packed[..., 0].long(), packed[..., 2:], packed[..., 1] > 0)


def consensus(logits: Tensor) -> Consensus:
    """What clients say together, from logits [clients, samples, …, classes].

    >>> said = consensus(torch.tensor([[[6.0, 0.0, 3.0]], [[0.0, 3.0, 0.0]], [[1.0, 1.0, 4.0]]]))
    >>> said.label.tolist(), [round(p, 6) for p in said.dissent[0].tolist()]
    ([0], [0.100368, 0.449816, 0.449816])
    """
    confidence = logits.var(-1, correction=0)
    label = weighed(logits, confidence).argmax(-1)
    differ = logits.argmax(-1) != label
    return Consensus(label, torch.softmax(weighed(logits, confidence * differ), -1), differ.any(0))


def weighed(logits: Tensor, weights: Tensor) -> Tensor:
    """The mean over clients with these weights [clients, samples, …]; 0 where nobody weighs anything."""
    shares = weights / weights.sum(0).clamp(min=torch.finfo(weights.dtype).tiny)
    return (shares[..., None] * logits).sum(0)


def loss(logits: Tensor, said: Consensus, diversity: float) -> Tensor:
    """CE(y*) + lambda KL(softmax(s_div) || own), the mean over samples; without the second term where all agree."""
    own = functional.log_softmax(logits.flatten(0, -2), -1)
    plain = functional.nll_loss(own, said.label.flatten())
    apart = functional.kl_div(own, said.dissent.flatten(0, -2), reduction="none").sum(-1)
    return plain.add((apart * said.heard.flatten()).mean(), alpha=diversity)


def mean_of(states: Sequence[Mapping[str, Tensor]], names: Sequence[str]) -> dict[str, Tensor]:
    """The mean of tensors, moved towards one after the other: those that agree stay as they are, bit for bit."""
    found = {name: states[0][name].clone() for name in names}
    for number, state in enumerate(states[1:], 2):
        for name, mean in found.items():
            if mean.is_floating_point():
                mean += (state[name].to(mean) - mean) / number
    return found


@dataclass(frozen=True)
class Taught:
    """The models after a round: the server's own, and those that clients hold."""

    server: Mapping[str, Tensor]
    clients: Mapping[Held, Mapping[str, Tensor]]


def taught(closing: Closing) -> Taught:
    """All models after the round."""
    plan, architectures = closing.plan, closing.architectures
    sent = [
        (held_at(architectures, task.capacity), {**one.mean})
        for one, task in zip(closing.sums, closing.tasks, strict=True)
    ]
    common = [{full: own[name] for full, name in shared_names(held, plan).items() if name in own} for held, own in sent]
    means = mean_of(common, list(common[0]))
    server = dict(closing.state) | {name: mean.to(closing.state[name]) for name, mean in means.items()}
    if closing.options["steps"]:
        server = _teach(closing, server)
    models: dict[Held, Mapping[str, Tensor]] = {}
    for held in all_held(closing.enrolled, architectures):
        old = under(closing.memory, kept_as(held))
        own = [state for sender, state in sent if sender == held]
        trained = [name for name in old if own and name in own[0]]
        new = old | {name: tensor.to(old[name]) for name, tensor in (mean_of(own, trained) if own else {}).items()}
        names = {inner: full for full, inner in shared_names(held, plan).items() if inner in new}
        new |= {inner: server[full].to(old[inner]) for inner, full in names.items()}
        tied = held.plan(plan).tied
        models[held] = new | {name: new[first] for name, first in tied.items() if name in new and first in new}
    return Taught(server, models)


def _teach(closing: Closing, server: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The server's model, trained on what clients say of public samples."""
    options = closing.options
    lesson = Lesson.of(
        closing,
        teachers(closing),
        lambda logits: consensus(logits).packed(),
        steps=options["steps"],
        batch_size=options["batch_size"],
    )
    student = filled(closing, GLOBAL, server)
    teach(
        student,
        lesson,
        SGD(student.parameters(), lr=options["rate"]),
        loss=lambda logits, said: loss(logits.float(), Consensus.unpacked(said), options["diversity"]),
    )
    return tensors_of(student, server)


def close(closing: Closing) -> dict[str, Tensor]:
    """The server's model."""
    return dict(closing.once(taught).server)


def advance(closing: Closing) -> dict[str, Tensor]:
    """The models of all clients."""
    memory = dict(closing.memory)
    for held, tensors in closing.once(taught).clients.items():
        memory |= named(kept_as(held), tensors)
    return memory


METHOD = Method(
    name="fedet",
    title="Fed-ET",
    paper="Cho et al. 2022",
    equation="Algorithm 1",
    choose=choose,
    options={
        "steps": count(128, "batches the server's model is taught in a round"),
        "batch_size": count(64, "public samples each", least=1),
        "rate": at_least_zero(0.005, "of SGD in teaching"),
        "diversity": at_least_zero(0.05, "lambda, the weight of those who disagree"),
    },
    slices=False,
    several=True,
    reads=("memory",),
    shared=lambda _: True,
    init=init,
    advance=advance,
    close=close,
    collect="updates",
    public=True,
    classes=True,
)
