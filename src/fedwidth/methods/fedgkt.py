"""FedGKT: clients train the lower end of a model, the server the upper one, and both teach each other (He et al. 2020).

The model is split after one of its layers. A client has all that comes before the boundary and a narrow network behind
it that ends in logits, or another architecture that begins in the same way; the server has the full model behind the
boundary, which may be larger than any client can hold.

    client   min CE(y) + alpha KD(own, server's logits)       KD(s, t) = T^2 KL(softmax(t / T) || softmax(s / T))
    server   min KD(own, client's logits) + alpha CE(y)

After training a client sends, for each of its samples, features (the output at the boundary), logits and the label. The
server trains on those of the round's clients in turn and returns its logits, which clients find by the sample. Before
the first of them clients minimise CE alone. Nothing is averaged in training.

For a whole model to measure and hand out, clients send the few weights before the boundary as well; the state has the
mean of the round's, which no client is ever given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

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
    Need,
    Sending,
    above_zero,
    at_least_zero,
    count,
    named,
    switch,
    under,
)
from fedwidth.methods.shared.boundary import (
    Upper,
    boundary_of,
    check_beginnings,
    check_boundary,
    lower_counts,
    lower_half,
)
from fedwidth.methods.shared.distillation import MAX_ANSWERED, adam, divergences
from fedwidth.methods.shared.own_models import OwnModel, first_models, own_model
from fedwidth.methods.shared.repeated import Graphs, Repeated
from fedwidth.methods.shared.width_models import filled, tensors_of
from fedwidth.plan.plan import Plan
from fedwidth.randomness import seeded, torch_generator, torch_seed

FEATURES, LOGITS, LABELS, LOWER, MOMENT = "features", "logits", "labels", "lower", "moment"
"""What clients send and are given, the weights before the boundary, and what the server's optimiser remembers."""
DECAY = 1e-4
"""Weight decay of the server's optimiser, as published."""


def init(beginning: Beginning) -> dict[str, Tensor]:
    """The models that clients begin with."""
    plan, layers = beginning.plan, beginning.options["layers"]
    if beginning.model is not None:
        check_boundary(beginning, layers, "FedGKT")
        check_beginnings(beginning, layers, "FedGKT")
    return first_models(beginning, partial(lower_counts, plan, layers))


def choose(plan: Plan, counts: Mapping[str, int], at: Moment) -> OwnModel:
    """The client's own model."""
    return own_model(plan, lower_counts(plan, at.options["layers"], counts), at)


def gives(memory: Memory, at: Sending) -> dict[str, Tensor]:
    """The server's logits for the client's samples, in their order, once there are some."""
    name = f"{LOGITS}.{at.client}"
    return {LOGITS: memory[name]} if name in memory else {}


def distillation(own: Tensor, other: Tensor, temperature: float) -> Tensor:
    """KD(own, other) of each sample, from logits [samples, …, classes].

    >>> [round(each, 6) for each in distillation(torch.zeros(1, 2), torch.tensor([[2.0, 0.0]]), 3.0).tolist()]
    [0.473532]
    """
    wanted = torch.softmax(other / temperature, -1)
    said = functional.log_softmax(own / temperature, -1)
    return divergences(said, wanted) * temperature**2


def loss(client: ClientPass, inputs: Tensor, targets: Tensor) -> Tensor:
    """CE(y) + alpha KD(client, server)."""
    logits = client.logits(inputs)
    plain = client.loss(logits, targets)
    if LOGITS not in client.rows:
        return plain
    taught = distillation(logits, client.rows[LOGITS], client.options["temperature"])
    return plain.add(client.mean(taught, targets), alpha=client.options["alpha"])


def answers(client: ClientPass) -> dict[str, Tensor]:
    """Features, logits and labels of all samples of the client, and its weights before the boundary."""
    network, places = client.network(), torch.arange(client.number_of_samples())
    boundary = boundary_of(network, client.options["layers"])
    dtype = next(network.parameters()).dtype  # passes may be in half precision
    found: dict[str, list[Tensor]] = {FEATURES: [], LOGITS: [], LABELS: []}
    met: list[str] = []
    for batch in in_batches(places, MAX_ANSWERED):
        inputs, targets = client.own_samples(batch)
        met, features, logits = lower_half(network, boundary, partial(client.logits, inputs))
        for name, tensor in ((FEATURES, features.to(dtype)), (LOGITS, logits.to(dtype)), (LABELS, targets)):
            found[name].append(tensor)
    own = dict([*network.named_parameters(), *network.named_buffers()])
    lower = {name: own[name].detach().clone() for name in met}
    return {SAMPLES: places, **{name: torch.cat(each) for name, each in found.items()}, **named(LOWER, lower)}


@dataclass(frozen=True)
class Served:
    """What the server has after a round."""

    network: nn.Module
    logits: Sequence[Tensor]
    """Its logits for the samples of each client of the round."""
    moments: Mapping[str, Tensor]


def served(closing: Closing) -> Served:
    """Train the server's network on what the round's clients sent, one after the other, and let it answer for all."""
    assert closing.model is not None
    options, sent = closing.options, closing.answers()
    network = filled(closing, GLOBAL, closing.state).train()
    upper = Upper(network, boundary_of(network, options["layers"]), closing.example, closing.answer)
    parameters = dict(network.named_parameters())
    optimiser = adam(parameters.values(), options["rate"], closing.device, weight_decay=DECAY, amsgrad=True)
    for name, parameter in parameters.items():
        if known := under(closing.memory, f"{MOMENT}.{name}"):
            optimiser.state[parameter] = {kind: tensor.clone().to(closing.device) for kind, tensor in known.items()}
    said = [torch.zeros_like(answer[LOGITS]) for answer in sent]

    def says(features: Tensor) -> Tensor:
        answered: Tensor = upper(features)
        return answered.to(features.dtype)  # where the server computes in half precision

    def take(features: Tensor, other: Tensor, labels: Tensor) -> Tensor:
        optimiser.zero_grad(set_to_none=True)
        logits = says(features)
        taught = distillation(logits, other, options["temperature"]).mean()
        plain = functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
        taught.add(plain, alpha=options["alpha"]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        return logits.detach()

    step = Repeated(take, network, optimiser, closing.once(Graphs.of))
    with seeded(torch_seed(closing.seed, "server dropout", closing.round), closing.device):
        for client, batch in _batches(closing, [len(answer[SAMPLES]) for answer in sent]):
            rows = [sent[client][name] for name in (FEATURES, LOGITS, LABELS)]
            logits = step(*(tensor[batch.to(tensor.device)] for tensor in rows))
            said[client][batch.to(logits.device)] = logits  # of the last epoch, in the end
    optimiser.zero_grad(set_to_none=True)
    if not options["published"]:
        network.eval()
        with torch.no_grad():
            said = [torch.cat([says(batch) for batch in in_batches(answer[FEATURES], MAX_ANSWERED)]) for answer in sent]
    kept = {name: optimiser.state[parameter] for name, parameter in parameters.items() if parameter in optimiser.state}
    moments = {f"{MOMENT}.{name}.{kind}": tensor for name, each in kept.items() for kind, tensor in each.items()}
    return Served(network, said, moments)


def _batches(closing: Closing, sizes: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
    """(place of the client, numbers of its samples) of every step: epoch by epoch, client by client."""
    generator = torch_generator(closing.seed, "server", closing.round)
    for _ in range(closing.options["epochs"]):
        for client, size in enumerate(sizes):
            order = torch.randperm(size, generator=generator).to(closing.device)
            for batch in in_batches(order, closing.options["batch_size"]):
                yield client, batch


def close(closing: Closing) -> dict[str, Tensor]:
    """The server's network, with the mean of the clients' weights before the boundary."""
    found = tensors_of(closing.once(served).network, closing.state)
    lower = [list(under(answer, LOWER).values()) for answer in closing.answers()]
    # Architectures may name what comes before the boundary otherwise, but all meet the same tensors in the same order.
    means = [torch.stack([tensor.double() for tensor in each]).mean(0) for each in zip(*lower, strict=True)]
    return found | {n: mean.to(closing.state[n]) for n, mean in zip(lower_names(closing), means, strict=True)}


def lower_names(closing: Closing) -> list[str]:
    """The tensors that the server's model meets before the boundary, in this order."""
    network = filled(closing, GLOBAL, closing.state).eval()
    boundary = boundary_of(network, closing.options["layers"])
    return lower_half(network, boundary, partial(closing.answer, network, closing.example))[0]


def advance(closing: Closing) -> dict[str, Tensor]:
    """The models that clients begin with, the server's logits by client and sample, and its optimiser's moments."""
    known = closing.once(served)
    logits = {
        f"{LOGITS}.{task.client}": said[torch.argsort(answer[SAMPLES]).to(said.device)]
        for task, said, answer in zip(closing.tasks, known.logits, closing.answers(), strict=True)
    }
    return {**closing.memory, **logits, **known.moments}


METHOD = Method(
    name="fedgkt",
    title="FedGKT",
    paper="He et al. 2020",
    equation="Algorithm 1",
    choose=choose,
    options={
        "layers": count(1, "layers before the boundary", least=1),
        "alpha": at_least_zero(1.0, "weight of the second term of both losses"),
        "temperature": above_zero(3.0, "T"),
        "epochs": count(20, "times the server sees all samples of a round"),
        "batch_size": count(256, "samples of one client in a batch of the server", least=1),
        "rate": at_least_zero(1e-3, "learning rate of the server's Adam"),
        "published": switch("return the logits of the last epoch, each before its step, as the published code does"),
    },
    slices=False,
    several=True,
    reads=("memory", "own"),
    local=Local(gives=gives, rows=(LOGITS,), loss=loss, steady=True, answers=answers),
    init=init,
    advance=advance,
    close=close,
    uploads="features, logits and labels of all its samples",
    collect="updates",
    classes=True,
    needs={"training.augment": Need(False, "logits and features belong to samples as they are")},
)
