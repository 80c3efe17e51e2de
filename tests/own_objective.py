"""Losses, metrics and objectives of one's own, as recipes name them, and data for every kind of objective."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedwidth.data import IGNORE, Data, from_tensors
from fedwidth.objectives import Metric, Objective
from fedwidth.objectives.metric import MeanOf, Measure

SAMPLES, TESTS = 96, 32


def halves(inputs, targets, **options) -> Data:
    """Data whose last samples are for testing."""

    def cut(tree, part):
        if isinstance(tree, dict):
            return {name: tensor[part] for name, tensor in tree.items()}
        return tuple(tensor[part] for tensor in tree) if isinstance(tree, tuple) else tree[part]

    train, test = slice(0, SAMPLES), slice(SAMPLES, None)
    return from_tensors(cut(inputs, train), cut(targets, train), cut(inputs, test), cut(targets, test), **options)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def regression(*, outputs: int = 1) -> Data:
    """Numbers that are a sum of the inputs."""
    x = torch.randn(SAMPLES + TESTS, 6, generator=generator())
    y = x @ torch.linspace(-1, 1, 6 * outputs).view(6, outputs) + 0.5
    return halves(x, y[:, 0] if outputs == 1 else y)


def multi_label() -> Data:
    """Four labels, each for one side of a plane; whole numbers."""
    x = torch.randn(SAMPLES + TESTS, 6, generator=generator())
    return halves(x, (x[:, :4] > 0).long())


def segmentation() -> Data:
    """Pictures of 8 x 8 in which bright pixels are of class 1, and the first is not to be counted."""
    x = torch.rand(SAMPLES + TESTS, 1, 8, 8, generator=generator())
    y = (x[:, 0] > 0.5).long()
    y[:, 0, 0] = IGNORE
    return halves(x, y)


def tagging() -> Data:
    """A label for each of five words: whether it is above ten; the last is padding."""
    words = torch.randint(1, 20, (SAMPLES + TESTS, 5), generator=generator())
    tags = (words > 10).long()
    tags[:, -1] = IGNORE
    return halves({"words": words, "mask": torch.ones_like(words).bool()}, tags)


def pairs() -> Data:
    """Inputs of two tensors, and whether their sum is positive."""
    x, z = (torch.randn(SAMPLES + TESTS, 3, generator=generator(seed)) for seed in (1, 2))
    return halves((x, z), ((x + z).sum(1) > 0).long())


def spans() -> Data:
    """Targets of two tensors: where a span begins and ends."""
    x = torch.randn(SAMPLES + TESTS, 6, generator=generator())
    first = x[:, :3].argmax(1)
    return halves(x, {"start": first, "end": first + 1})


class Plain(nn.Sequential):
    """Points to classes."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, classes))


class NextWord(nn.Sequential):
    """Words to words."""

    def __init__(self, vocabulary: int = 34) -> None:
        super().__init__(nn.Embedding(vocabulary, 8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, vocabulary))


class Dense(nn.Module):
    """A network over pictures that keeps their size."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.head = nn.Conv2d(8, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Tagger(nn.Module):
    """Words and a mask by name; returns a dictionary."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, classes)

    def forward(self, words: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        hidden = torch.relu(self.hidden(self.embed(words)))
        hidden = hidden if mask is None else hidden * mask[..., None]
        return {"logits": self.head(hidden)}


class Sum(nn.Module):
    """Two inputs; returns a tuple of logits and something else."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(3, 8), nn.Linear(3, 8), nn.Linear(8, classes)

    def forward(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.relu(self.left(x) + self.right(z))
        return self.head(hidden), x.mean()


class Ends(nn.Module):
    """Two answers, of which a loss of one's own takes both."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.start, self.end = nn.Linear(6, 8), nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.relu(self.body(x))
        return self.start(hidden), self.end(hidden)


def both_ends(output: tuple[Tensor, Tensor], targets: dict[str, Tensor]) -> Tensor:
    start, end = output
    return functional.cross_entropy(start, targets["start"]) + functional.cross_entropy(end, targets["end"])


def exact_match(output: tuple[Tensor, Tensor], targets: dict[str, Tensor]) -> Tensor:
    """Both ends right."""
    start, end = output
    return ((start.argmax(1) == targets["start"]) & (end.argmax(1) == targets["end"])).double()


def whole(result: object) -> object:
    return result


SPANS = Objective(
    "spans",
    both_ends,
    Metric(Measure("exact_match", "both ends right", percent=True), MeanOf(exact_match)),
    output=whole,
)


def huber(output: Tensor, targets: Tensor) -> Tensor:
    return functional.huber_loss(output.reshape(targets.shape), targets)


def within_one(output: Tensor, targets: Tensor) -> Tensor:
    """Answers within one of the truth."""
    return ((output.reshape(targets.shape) - targets).abs() < 1).double()


def distance(output: Tensor, targets: Tensor) -> Tensor:
    return (output.reshape(targets.shape) - targets).abs()


def smoothed(output: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(output, targets, label_smoothing=0.1)


def not_reduced(output: Tensor, targets: Tensor) -> Tensor:
    return (output.reshape(targets.shape) - targets) ** 2


def constant(output: Tensor, targets: Tensor) -> Tensor:
    return torch.tensor(1.0)


def failing(output: Tensor, targets: Tensor) -> Tensor:
    raise KeyError("no such column")


def mean_of_all(output: Tensor, targets: Tensor) -> Tensor:
    return output.mean()
