"""FedDF: the server teaches every architecture what all clients' models say together (Lin et al. 2020, Algorithm 3).

Devices of different sizes train different networks: by default the widths of the run's model, each a model of its own,
or whatever architectures the run names for them. The server keeps the run's model. After local training

    1  for each architecture that took part, its clients are averaged: that is the student
    2  teachers are all clients' models, of every architecture
    3  on public samples without labels the student minimises KL(softmax(mean of teachers' logits / T) || student);
       where the run has validation samples, the student that did best on them is taken

and the result is the architecture's model of the next round. Where no client holds the server's model, it is taught
too, from where it was.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from fedwidth.core.architectures import GLOBAL, Held
from fedwidth.methods.definition import Closing, Method, above_zero, at_least_zero, choice, count
from fedwidth.methods.shared.distillation import Best, Lesson, adam, cosine, divergence, teach
from fedwidth.methods.shared.width_models import (
    averages,
    choose,
    filled,
    init,
    remembered,
    teachers,
    tensors_of,
)

CLIP = 5.0
"""The largest norm of a gradient in distillation, as published."""


def ensemble(logits: Tensor, average: str, temperature: float) -> Tensor:
    """The probabilities of all teachers together, from logits [teachers, …, classes]."""
    if average == "logits":
        return torch.softmax(logits.mean(0) / temperature, -1)
    return torch.softmax(logits / temperature, -1).mean(0)


def students(closing: Closing) -> dict[Held, dict[str, Tensor]]:
    """The tensors of every architecture after the round."""
    models, options = averages(closing), closing.options
    if not options["steps"]:
        return models
    models.setdefault(GLOBAL, dict(closing.state))
    says = partial(ensemble, average=options["average"], temperature=options["temperature"])
    lesson = Lesson.of(closing, teachers(closing), says, steps=options["steps"], batch_size=options["batch_size"])
    rates = cosine(options["rate"], options["steps"])
    for held, tensors in models.items():
        student = filled(closing, held, tensors)
        best = Best(student, closing.validate, every=options["look_every"], patience=options["patience"])
        teach(
            student,
            lesson,
            adam(student.parameters(), options["rate"], closing.device),
            loss=partial(divergence, temperature=options["temperature"]),
            rates=rates,
            clip=CLIP,
            after=best.look,
        )
        best.restore()
        models[held] = tensors_of(student, tensors)
    return models


def close(closing: Closing) -> dict[str, Tensor]:
    """The run's model; as it was, where it neither took part nor was taught."""
    return closing.once(students).get(GLOBAL, dict(closing.state))


def advance(closing: Closing) -> dict[str, Tensor]:
    """All others."""
    return remembered(closing.memory, closing.once(students))


METHOD = Method(
    name="feddf",
    title="FedDF",
    paper="Lin et al. 2020",
    equation="Algorithm 3",
    choose=choose,
    options={
        "steps": count(100, "batches a student is taught in a round"),
        "batch_size": count(128, "public samples each", least=1),
        "rate": at_least_zero(1e-3, "Adam's learning rate, along a cosine"),
        "temperature": above_zero(1.0, "T"),
        "look_every": count(100, "batches between looks at validation samples, where there are some", least=1),
        "patience": count(1000, "batches without a better look after which a student is taught no longer"),
        "average": choice("logits", "probabilities", help="of what the teachers' mean is taken"),
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
