"""Models by import path, as a user names one of his own."""

from __future__ import annotations

from torch import Tensor, nn

from zoo.problem_sequences import MarkedPooling


def words() -> MarkedPooling:
    """A model that reads words."""
    return MarkedPooling(16, 24)


def with_classes(classes: int, *, data_shape: tuple[int, ...], **options: int) -> nn.Module:
    """A model that asks for facts of the data."""
    return nn.Sequential(nn.Flatten(), nn.Linear(data_shape[0], 8, **options), nn.ReLU(), nn.Linear(8, classes))


class TwoInputs(nn.Module):
    """A model that reads two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.out = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return self.out((self.one(one) + self.other(other)).relu())
