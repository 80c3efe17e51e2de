"""Teaching a model to answer as others do, on samples without labels.

A lesson is the public samples of every step and the probabilities a student should answer for them. What teachers say
is computed once for every sample that is used; batches are drawn from (seed, round). Where the run has validation
samples, the student that does best on them may be kept (`Best`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from fedwidth.errors import OptionError
from fedwidth.methods.definition import Closing
from fedwidth.randomness import torch_generator, torch_seed

MAX_ANSWERED = 512
"""Samples that teachers answer at a time."""


@dataclass(frozen=True)
class Lesson:
    """What a student is taught in one round."""

    closing: Closing
    batches: Sequence[Tensor]
    """Numbers of the public samples of each step."""
    wanted: Sequence[Tensor]
    """The probabilities that should be answered for them."""

    @classmethod
    def of(
        cls,
        closing: Closing,
        teachers: Sequence[nn.Module],
        combine: Callable[[Tensor], Tensor],
        *,
        steps: int,
        batch_size: int,
    ) -> Lesson:
        """A lesson of so many steps; `combine` makes probabilities of logits [teachers, samples, …, classes]."""
        data = closing.public
        if data is None:
            raise OptionError("distillation needs data of the server's own: data.public or data.public_name")
        generator, samples = torch_generator(closing.seed, "distil", closing.round), len(data.train)
        size, batches = min(batch_size, samples), list[Tensor]()
        while len(batches) < steps:  # shuffled anew whenever all have been used
            order = torch.randperm(samples, generator=generator)
            batches += torch.split(order[: samples // size * size], size)
        inputs = data.train.inputs  # batches lie where the samples are: in every step the device would wait for them
        home = inputs.device if isinstance(inputs, Tensor) else torch.device("cpu")
        batches = [batch.to(home) for batch in batches[:steps]]
        used, places = torch.unique(torch.cat(batches), return_inverse=True)
        answered = answers(closing, teachers, used, combine)
        where = torch.split(places, [len(batch) for batch in batches])
        return cls(closing, batches, [answered[numbers.to(answered.device)] for numbers in where])


@torch.no_grad()
def answers(
    closing: Closing, models: Sequence[nn.Module], samples: Tensor, combine: Callable[[Tensor], Tensor]
) -> Tensor:
    """What models say of public samples together."""
    assert closing.public is not None
    found = []
    for batch in torch.split(samples, MAX_ANSWERED):
        inputs, _ = closing.public.batch(closing.public.train, batch, train=False, device=closing.device)
        found.append(combine(torch.stack([closing.answer(model, inputs).float() for model in models])))
    return torch.cat(found)


def teach(
    student: nn.Module,
    lesson: Lesson,
    optimiser: Optimizer,
    *,
    temperature: float = 1.0,
    clip: float | None = None,
    after: Callable[[int], bool] = lambda _: True,
) -> None:
    """Train a student in place; `after` is called with the number of every step that was taken, and says whether to go
    on."""
    closing, data = lesson.closing, lesson.closing.public
    assert data is not None
    student.train()
    with torch.random.fork_rng(devices=[closing.device] if closing.device.type == "cuda" else []):
        torch.manual_seed(torch_seed(closing.seed, "distil dropout", closing.round))
        for step, (batch, wanted) in enumerate(zip(lesson.batches, lesson.wanted, strict=True)):
            inputs, _ = data.batch(data.train, batch, train=False, device=closing.device)
            optimiser.zero_grad(set_to_none=True)
            divergence(closing.answer(student, inputs), wanted, temperature).backward()  # type: ignore[no-untyped-call]
            if clip is not None:
                nn.utils.clip_grad_norm_(student.parameters(), clip)
            optimiser.step()
            if not after(step):
                return


class Best:
    """The student that did best on validation samples, of those that were looked at."""

    def __init__(
        self, student: nn.Module, validate: Callable[[nn.Module], float] | None, *, every: int, patience: int
    ) -> None:
        """Without `validate` nothing is looked at, and the student stays as it is."""
        self.student, self.validate, self.every, self.patience = student, validate, every, patience
        self.score, self.step = -math.inf, 0
        self._tensors: dict[str, Tensor] = {}

    def look(self, step: int) -> bool:
        """Look at the student after this step, if it is time; False once none was better for too long."""
        if self.validate is None or (step + 1) % self.every:
            return True
        score = self.validate(self.student)
        if score > self.score:
            self.score, self.step = score, step
            self._tensors = {name: tensor.clone() for name, tensor in self.student.state_dict().items()}
        return step - self.step < self.patience

    def restore(self) -> None:
        """Make the student the best one again, if any was looked at."""
        if self._tensors:
            self.student.load_state_dict(self._tensors)


def divergence(logits: Tensor, wanted: Tensor, temperature: float) -> Tensor:
    """KL(wanted || softmax(logits / temperature)), the mean over samples; without the factor temperature squared.

    >>> round(divergence(torch.zeros(1, 2), torch.tensor([[0.622459, 0.377541]]), 1.0).item(), 6)
    0.0303
    """
    own = functional.log_softmax(logits.float() / temperature, -1)
    return functional.kl_div(own.flatten(0, -2), wanted.flatten(0, -2), reduction="batchmean")
