"""DS-FL: clients send what they think of public samples instead of weights (Itahara et al. 2021).

Every client has a model of its own, which stays with it: by default a width of the run's model, or whatever
architecture the run names for it. The server has the run's model. In a round it draws public samples, without labels,
and a client

    1  is taught what all clients said of the round before's samples
    2  trains on its own samples
    3  answers the round's samples: probabilities, which are all it sends

The server takes the mean p of the answers and makes it sharper, softmax(p / T) with T = 0.1: entropy reduction
averaging (ERA). That is what clients are taught in the next round, and what the server's own model is taught at once:

    min KL(softmax(p / T) || model)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD

from fedwidth.core.answers import SAMPLES
from fedwidth.core.architectures import GLOBAL
from fedwidth.data.batches import in_batches
from fedwidth.methods.definition import (
    Beginning,
    ClientPass,
    Closing,
    Local,
    Memory,
    Method,
    Moment,
    Sending,
    above_zero,
    at_least_zero,
    choice,
    count,
)
from fedwidth.methods.shared.distillation import MAX_ANSWERED, Lesson, divergence, home_of, teach
from fedwidth.methods.shared.own_models import OwnModel, first_models, own_model
from fedwidth.methods.shared.width_models import filled, tensors_of
from fedwidth.plan.plan import Plan
from fedwidth.randomness import torch_generator

TAUGHT, LABELS, PROBABILITIES = "taught", "labels", "probabilities"
"""What travels beside the samples to answer: the round before's and what all said of them; and what the client says."""


def init(beginning: Beginning) -> dict[str, Tensor]:
    """The models that clients begin with."""
    return first_models(beginning)


def choose(plan: Plan, counts: Mapping[str, int], at: Moment) -> OwnModel:
    """The client's own model."""
    return own_model(plan, counts, at)


def drawn(seed: int, round: int, public: int, samples: int) -> Tensor:
    """The numbers of the public samples that a round's clients answer."""
    return torch.randperm(public, generator=torch_generator(seed, "public", round))[:samples]


def gives(memory: Memory, at: Sending) -> dict[str, Tensor]:
    """The samples to answer and, from the second round on, what all said of the round before's."""
    found = {SAMPLES: drawn(at.seed, at.round, at.public, at.options["samples"])}
    return found | {name: memory[name] for name in (TAUGHT, LABELS) if name in memory}


def before(client: ClientPass) -> int:
    """Teach the client what all said of the round before's samples; returns how many it has seen."""
    if TAUGHT not in client.given:
        return 0
    options, network, generator = client.options, client.network(), client.generator("distil")
    samples, labels = client.given[TAUGHT].cpu(), client.given[LABELS]
    optimiser = SGD(network.parameters(), lr=options["rate"])

    def take(inputs: Any, wanted: Tensor) -> Tensor:
        optimiser.zero_grad(set_to_none=True)
        found = divergence(client.logits(inputs), wanted)
        found.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        return found.detach()

    step = client.repeated(take, optimiser)
    for _ in range(options["epochs"]):
        order = torch.from_numpy(generator.permutation(len(samples)))
        for batch in in_batches(order, options["batch_size"]):
            step(client.public_inputs(samples[batch]), labels[batch.to(labels.device)])
    optimiser.zero_grad(set_to_none=True)
    return int(options["epochs"]) * len(samples)


def answers(client: ClientPass) -> dict[str, Tensor]:
    """The numbers of the public samples, and the probabilities that the client's model gives for them."""
    samples = client.given[SAMPLES].cpu()
    batches = in_batches(samples, MAX_ANSWERED)
    found = [torch.softmax(client.logits(client.public_inputs(batch)).float(), -1) for batch in batches]
    return {SAMPLES: samples, PROBABILITIES: torch.cat(found)}


def together(probabilities: Tensor, average: str, temperature: float) -> Tensor:
    """What all clients say, from probabilities [clients, samples, …, classes]: their mean, with its entropy reduced.

    >>> said = torch.tensor([[[0.7, 0.2, 0.1]], [[0.3, 0.5, 0.2]]])
    >>> [round(p, 6) for p in together(said, "era", 0.1)[0].tolist()]
    [0.797876, 0.17803, 0.024094]
    """
    mean = probabilities.mean(0)
    return torch.softmax(mean / temperature, -1) if average == "era" else mean


def labels(closing: Closing) -> Tensor:
    """What all clients of the round say of its samples."""
    said = torch.stack([answer[PROBABILITIES] for answer in closing.answers()])
    return together(said, closing.options["average"], closing.options["temperature"])


def advance(closing: Closing) -> dict[str, Tensor]:
    """The models that clients begin with, and what the next round's clients are taught."""
    return {**closing.memory, TAUGHT: closing.answers()[0][SAMPLES], LABELS: closing.once(labels)}


def close(closing: Closing) -> dict[str, Tensor]:
    """The server's own model, taught what all clients say."""
    assert closing.public is not None
    options, wanted, home = closing.options, closing.once(labels), home_of(closing.public)
    samples = closing.answers()[0][SAMPLES].to(home)
    generator = torch_generator(closing.seed, "distil", closing.round)
    orders = [torch.randperm(len(samples), generator=generator) for _ in range(options["epochs"])]
    batches = [batch for order in orders for batch in in_batches(order, options["batch_size"])]
    lesson = Lesson(
        closing, [samples[batch.to(home)] for batch in batches], [wanted[batch.to(wanted.device)] for batch in batches]
    )
    student = filled(closing, GLOBAL, closing.state)
    teach(student, lesson, SGD(student.parameters(), lr=options["rate"]))
    return tensors_of(student, closing.state)


METHOD = Method(
    name="dsfl",
    title="DS-FL",
    paper="Itahara et al. 2021",
    equation="entropy reduction averaging (ERA)",
    choose=choose,
    options={
        "samples": count(1000, "public samples that clients answer in a round", least=1),
        "temperature": above_zero(0.1, "T of entropy reduction"),
        "average": choice("era", "mean", help="whether the mean of answers has its entropy reduced (ERA) or not (SA)"),
        "epochs": count(5, "times a model is taught all samples of a round"),
        "batch_size": count(100, "public samples each", least=1),
        "rate": at_least_zero(0.1, "of SGD in teaching, on clients and server"),
    },
    slices=False,
    several=True,
    reads=("memory", "own"),
    local=Local(gives=gives, before=before, answers=answers),
    init=init,
    advance=advance,
    close=close,
    uploads="probabilities of public samples",
    collect="updates",
    public=True,
    classes=True,
)
