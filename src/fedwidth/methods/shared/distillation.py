"""Teaching a model to answer as others do, on samples without labels.

A lesson is the public samples of every step and the probabilities a student should answer for them. What teachers say
is computed once for every sample that is used; batches are drawn from (seed, round). Where the run has validation
samples, the student that does best on them may be kept (`Best`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

from fedwidth.data.batches import batch_end
from fedwidth.data.trees import Tree, leaves
from fedwidth.errors import OptionError
from fedwidth.methods.definition import Closing
from fedwidth.methods.shared.repeated import Graphs, Repeated
from fedwidth.randomness import seeded, torch_generator, torch_seed

if TYPE_CHECKING:
    from fedwidth.data import Data

MAX_ANSWERED = 512
"""Samples that teachers answer at a time."""
MAX_ANSWERED_ON_GPU = 2048
"""The same on a GPU, where narrow teachers answer faster than Python can ask them, if they and all that is said of them
are small: of so many samples no more than these values go in and come out."""
MAX_VALUES_IN, MAX_VALUES_OUT = 2**23, 2**28

Loss = Callable[[Tensor, Tensor], Tensor]
"""(logits, what is wanted of the samples) -> the loss."""


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
        data = public_data(closing)
        generator, samples = torch_generator(closing.seed, "distil", closing.round), len(data.train)
        size, batches = min(batch_size, samples), list[Tensor]()
        while len(batches) < steps:  # shuffled anew whenever all have been used
            order = torch.randperm(samples, generator=generator)
            batches += torch.split(order[: samples // size * size], size)
        home = home_of(data)  # in every step the device would wait for batches that lie elsewhere
        batches = [batch.to(home) for batch in batches[:steps]]
        used, places = torch.unique(torch.cat(batches), return_inverse=True)
        answered = answers(closing, teachers, used, combine)
        where = torch.split(places, [len(batch) for batch in batches])
        return cls(closing, batches, [answered[numbers.to(answered.device)] for numbers in where])


def public_data(closing: Closing) -> Data:
    """The server's own data."""
    if closing.public is None:
        raise OptionError("distillation needs data of the server's own: data.public or data.public_name")
    return closing.public


def batches_an_epoch(closing: Closing, batch_size: int) -> int:
    """How many batches a lesson takes from all public samples before it shuffles them anew; all of them are full."""
    samples = len(public_data(closing).train)
    return samples // min(batch_size, samples)


def home_of(data: Data) -> torch.device:
    """Where the training samples are."""
    inputs = data.train.inputs
    return inputs.device if isinstance(inputs, Tensor) else torch.device("cpu")


@torch.no_grad()
def answers(
    closing: Closing, models: Sequence[nn.Module], samples: Tensor, combine: Callable[[Tensor], Tensor]
) -> Tensor:
    """What models say of public samples together."""
    assert closing.public is not None
    found, size, begin = [], MAX_ANSWERED, 0
    while begin < len(samples):
        batch = samples[begin : (end := batch_end(begin, size, len(samples)))]
        inputs, _ = closing.public.batch(closing.public.train, batch, train=False, device=closing.device)
        said = torch.stack([closing.answer(model, inputs).float() for model in models])
        found.append(combine(said))
        begin = end
        if closing.device.type == "cuda":
            size = _samples_at_a_time(inputs, said, len(batch))
    return torch.cat(found)


def _samples_at_a_time(inputs: Tree, said: Tensor, samples: int) -> int:
    """How many samples a GPU answers at a time, given some and what was said of them.

    >>> _samples_at_a_time(torch.zeros(2, 3, 32, 32), torch.zeros(10, 2, 10), 2)
    2048
    >>> _samples_at_a_time(torch.zeros(2, 3, 224, 224), torch.zeros(10, 2, 10), 2)
    512
    """
    into = MAX_VALUES_IN * samples // sum(leaf.numel() for leaf in leaves(inputs))
    out = MAX_VALUES_OUT * samples // said.numel()
    return max(MAX_ANSWERED, min(MAX_ANSWERED_ON_GPU, into, out))


def adam(parameters: Iterable[Tensor], rate: float, device: torch.device, **others: Any) -> Adam:
    """Adam for parameters on a device: on a GPU one that can be captured, whose learning rate is a tensor."""
    if device.type != "cuda":
        return Adam(parameters, lr=rate, **others)
    return Adam(parameters, lr=torch.tensor(rate, device=device), fused=True, capturable=True, **others)


def cosine(rate: float, steps: int) -> list[float]:
    """The learning rate of every step, along a cosine.

    >>> [round(rate, 6) for rate in cosine(1.0, 4)]
    [1.0, 0.853553, 0.5, 0.146447]
    """
    optimiser, rates = SGD([torch.zeros(1)], lr=rate), list[float]()
    schedule = CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    return rates


def divergences(own: Tensor, wanted: Tensor) -> Tensor:
    """KL(wanted || own) of each sample, given logarithms of its own probabilities [..., classes] and those wanted.

    For losses of clients: PyTorch's function takes the clients of a stack one after the other.

    >>> said, wanted = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.622459, 0.377541]])
    >>> round(divergences(said.log(), wanted).item(), 4)
    0.0303
    """
    return (torch.xlogy(wanted, wanted) - wanted * own).sum(-1)


def divergence(logits: Tensor, wanted: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(wanted || softmax(logits / temperature)), the mean over samples; without the factor temperature squared.

    >>> round(divergence(torch.zeros(1, 2), torch.tensor([[0.622459, 0.377541]]), 1.0).item(), 6)
    0.0303
    """
    own = functional.log_softmax(logits.float() / temperature, -1)
    return functional.kl_div(own.flatten(0, -2), wanted.flatten(0, -2), reduction="batchmean")


def teach(
    student: nn.Module,
    lesson: Lesson,
    optimiser: Optimizer,
    *,
    loss: Loss = divergence,
    rates: Sequence[float] | None = None,
    clip: float | None = None,
    after: Callable[[int], bool] = lambda _: True,
) -> None:
    """Train a student in place, on a GPU by steps that are captured (`repeated`).

    `rates` are the learning rates of the steps, where they differ: for an optimiser that `adam` made. `after` is called
    with the number of every step that was taken, and says whether to go on.
    """
    closing, data = lesson.closing, lesson.closing.public
    assert data is not None

    def take(inputs: Tree, wanted: Tensor) -> Tensor:
        optimiser.zero_grad(set_to_none=True)
        found = loss(closing.answer(student, inputs), wanted)
        found.backward()  # type: ignore[no-untyped-call]
        if clip is not None:
            nn.utils.clip_grad_norm_(student.parameters(), clip)
        optimiser.step()
        return found.detach()

    student.train()
    step = Repeated(take, student, optimiser, closing.once(Graphs.of))
    with seeded(torch_seed(closing.seed, "distil dropout", closing.round), closing.device):
        for number, (batch, wanted) in enumerate(zip(lesson.batches, lesson.wanted, strict=True)):
            inputs, _ = data.batch(data.train, batch, train=False, device=closing.device)
            if rates is not None:
                _set_rate(optimiser, rates[number])
            step(inputs, wanted)
            if not after(number):
                break
    optimiser.zero_grad(set_to_none=True)  # gradients lie in the memory of captured steps, which others take over


def _set_rate(optimiser: Optimizer, rate: float) -> None:
    """Set the learning rate; a captured step reads it from a tensor."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


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
