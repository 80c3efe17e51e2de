"""FedBE: the server teaches the average what an ensemble of likely models says (Chen and Chao 2021).

Clients train the whole model, as in FedAvg. The server

    1  averages: w
    2  draws models around it: w + sigma * noise, sigma^2 the variance of clients' models ("gaussian"), or averages of
       clients with weights that a Dirichlet distribution gives ("dirichlet")
    3  teachers are w, the models drawn and all clients' models; on public samples without labels their mean
       probabilities p are sharpened, p^(1 / 0.5) made to sum to 1
    4  w is taught to answer so, and the mean of its last models along the way (SWA) is the new state
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.swa_utils import AveragedModel

from fedwidth.core.architectures import GLOBAL
from fedwidth.methods import fedavg
from fedwidth.methods.definition import Closing, Method, above_zero, at_least_zero, choice, count, share
from fedwidth.methods.shared.distillation import Lesson, batches_an_epoch, teach
from fedwidth.methods.shared.width_models import filled, teachers, tensors_of
from fedwidth.randomness import numpy_generator

TINY = 1e-5
"""The least variance of unit steps, as published."""


def draw(closing: Closing, mean: Mapping[str, Tensor], generator: np.random.Generator) -> dict[str, Tensor]:
    """A model from the distribution over clients' models; buffers are those of the average."""
    # In the plan's order, not the state's: a state read from a checkpoint has another, and noise is drawn in turn.
    own = [name for name in closing.plan.shapes if name in closing.plan.parameters and name not in closing.plan.tied]
    names = [name for name in own if name in mean and mean[name].is_floating_point()]
    models: Sequence[Mapping[str, Tensor]] = [one.mean for one in closing.sums]
    shares = np.array([one.total_weight for one in closing.sums])
    shares = shares / shares.sum()
    kind, found = closing.options["distribution"], dict(mean)
    gamma = generator.dirichlet(np.full(len(models), closing.options["alpha"])) if kind == "dirichlet" else shares
    for name in names:
        held = [model for model in models if name in model]
        if not held:
            continue
        stacked = torch.stack([model[name] for model in held])
        if kind == "dirichlet":
            found[name] = dirichlet_sample(stacked, shares, gamma).to(mean[name])
            continue
        noise = torch.tensor(generator.standard_normal(tuple(mean[name].shape)), dtype=stacked.dtype)
        sample = published_sample if kind == "published" else paper_sample
        found[name] = sample(stacked, shares, closing.state[name], noise.to(stacked.device)).to(mean[name])
    return found


def dirichlet_sample(models: Tensor, shares: np.ndarray, gamma: np.ndarray) -> Tensor:
    """The mean of clients' models [clients, …], weighed by their shares times what was drawn for them, gamma."""
    weights = gamma * shares
    return weighed(models, weights / weights.sum())


def weighed(models: Tensor, shares: np.ndarray) -> Tensor:
    """The sum of models [clients, …] times their shares, in double: a GPU may round products in single (TF32)."""
    found: Tensor = torch.tensordot(torch.tensor(shares, dtype=torch.float64, device=models.device), models.double(), 1)
    return found


def paper_sample(models: Tensor, shares: np.ndarray, start: Tensor, noise: Tensor) -> Tensor:
    """mu + sigma * noise, with the weighted mean and variance of clients' models [clients, …]."""
    del start
    mean = weighed(models, shares)
    return mean + weighed((models - mean).square(), shares).sqrt() * noise


def published_sample(models: Tensor, shares: np.ndarray, start: Tensor, noise: Tensor) -> Tensor:
    """As the published code: unit steps from the start, their mean and a tenth of their deviation, of mean length."""
    del shares
    steps = models - start
    lengths = steps.flatten(1).norm(dim=1)
    units = steps / lengths.clamp(min=1e-12).reshape(-1, *(1 for _ in start.shape))
    spread = units.var(0, correction=0).clamp(min=TINY).sqrt()
    found: Tensor = (units.mean(0) + 0.1 * spread * noise) * lengths.mean() + start
    return found


def sharpen(probabilities: Tensor, temperature: float) -> Tensor:
    """p^(1 / temperature), made to sum to 1.

    >>> sharpen(torch.tensor([0.5, 0.35, 0.15]), 0.5).tolist()
    [0.6329113841056824, 0.31012657284736633, 0.0569620244204998]
    """
    powers = probabilities ** (1 / temperature)
    return powers / powers.sum(-1, keepdim=True)


def close(closing: Closing) -> dict[str, Tensor]:
    """The average of clients, taught."""
    mean, options = closing.average(), closing.options
    if not options["steps"] or not options["epochs"]:
        return mean
    steps = min(options["steps"], options["epochs"] * batches_an_epoch(closing, options["batch_size"]))
    generator = numpy_generator(closing.seed, "ensemble", closing.round)
    drawn = [draw(closing, mean, generator) for _ in range(options["samples"])]
    models = [filled(closing, GLOBAL, state).eval() for state in (mean, *drawn)]
    lesson = Lesson.of(
        closing,
        [*models, *teachers(closing)],
        lambda logits: sharpen(torch.softmax(logits, -1).mean(0), options["sharpening"]),
        steps=steps,
        batch_size=options["batch_size"],
    )
    student = filled(closing, GLOBAL, mean)
    averaged = AveragedModel(student)
    first = int(options["average_from"] * steps)

    def average(step: int) -> bool:
        if step >= first:
            averaged.update_parameters(student)
        return True

    teach(
        student,
        lesson,
        SGD(student.parameters(), lr=options["rate"], momentum=0.9, weight_decay=1e-5),
        after=average,
    )
    found = averaged.module if first < steps else student
    assert isinstance(found, nn.Module)
    return tensors_of(found, mean)


METHOD = Method(
    name="fedbe",
    title="FedBE",
    paper="Chen and Chao 2021",
    equation="Algorithm 1",
    choose=fedavg.choose,
    options={
        "distribution": choice("gaussian", "published", "dirichlet", help="what models are drawn from"),
        "samples": count(10, "models drawn in a round"),
        "alpha": above_zero(1.0, "of the Dirichlet distribution"),
        "sharpening": above_zero(0.5, "temperature of the mean"),
        "epochs": count(20, "times the average is taught all public samples in a round"),
        "steps": count(10_000, "batches it is taught in a round at most"),
        "batch_size": count(128, "public samples each", least=1),
        "rate": at_least_zero(1e-3, "of SGD with momentum 0.9"),
        "average_from": share(0.5, "steps before models are averaged (SWA)"),
    },
    shared=lambda _: True,
    close=close,
    collect="updates",
    public=True,
    classes=True,
)
