"""Small models of one's own that make trouble for engines, and runs of them."""

from __future__ import annotations

import os
import random
import signal
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedwidth.data import from_tensors
from fedwidth.experiment import Experiment
from fedwidth.settings import DataSettings, DeviceSettings, Settings

EXAMPLE = 2
"""The samples of an example batch: models are tried with so many before they train."""


def own(model: nn.Module, **changes: Any) -> Experiment:
    """A run of one round: two of four clients train, with ten samples each."""
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    data = from_tensors(x, (x[:, 0] > 0).long(), x, (x[:, 0] > 0).long())
    settings = Settings(rounds=1, devices=DeviceSettings("a1", per_round=2), data=DataSettings(clients=4))
    return Experiment(replace(settings, **changes), model=model, data=data)


class Plain(nn.Sequential):
    """Two layers, and nothing to trouble anybody."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))

    @property
    def trains(self) -> bool:
        """Whether a forward pass is part of a training step."""
        return self.training and torch.is_grad_enabled()


class Fails(Plain):
    """Works while it is traced, tried and evaluated, and fails in training."""

    def forward(self, x: Tensor) -> Tensor:
        if self.trains and len(x) > EXAMPLE:
            raise RuntimeError("out of luck")
        return super().forward(x)


class FailsOnDigits(Fails):
    """The same for digits."""

    def __init__(self) -> None:
        super().__init__()
        self[0], self[2] = nn.Linear(64, 8), nn.Linear(8, 10)


def failing(data_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A factory that a recipe can name."""
    return nn.Sequential(nn.Flatten(), FailsOnDigits())


class Dies(Plain):
    """Kills its process in one of its training steps, as long as there is a file."""

    taken = 0  # in this process: clients leave nothing for each other in attributes of a model

    def __init__(self) -> None:
        super().__init__()
        self.mark, self.step = "", 0

    def forward(self, x: Tensor) -> Tensor:
        if self.trains:
            Dies.taken += 1
            if Dies.taken == self.step and os.path.exists(self.mark):
                os.unlink(self.mark)
                os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)


class Looks(Plain):
    """Looks at its values in training, which a stack of models has not one of."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y / 2 if self.trains and float(y.detach().sum()) > 1e9 else y


class Renorms(Plain):
    """Has an operator that vmap takes apart, client by client."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.renorm(x, 2, 0, 1.0))


class Holds(Plain):
    """Holds something no other process can be given."""

    def __init__(self) -> None:
        super().__init__()
        self.hook = lambda: None

    def __deepcopy__(self, memo: dict[int, Any]) -> Holds:
        return Holds()


class Averages(Plain):
    """Subtracts a moving average of what it has seen, which it writes into a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self[0](x)
        if self.training:
            self.see(hidden.detach().mean(0))
        return self[2](hidden - self.mean)

    def see(self, value: Tensor) -> None:
        """Count a batch."""
        self.mean.mul_(0.5).add_(0.5 * value)


class AveragesAnew(Averages):
    """The same with a new tensor in place of the buffer."""

    def see(self, value: Tensor) -> None:
        """Count a batch."""
        self.mean = 0.5 * self.mean + 0.5 * value


class Grows(Averages):
    """Puts a tensor of another shape in place of its buffer."""

    def see(self, value: Tensor) -> None:
        """Count a batch."""
        self.mean = value.mean(0, keepdim=True)


class Steps(Plain):
    """Has a number of its own for each step, in a buffer of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.start()

    def start(self) -> None:
        """Begin to count."""
        self.register_buffer("taken", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.taken += 1
        return super().forward(x) / (1 + self.taken)


class StepsInAttribute(Steps):
    """The same in a plain attribute."""

    def start(self) -> None:
        """Begin to count."""
        self.taken = 0


class StepsInTensor(Steps):
    """The same in a plain tensor."""

    def start(self) -> None:
        """Begin to count."""
        self.taken = torch.tensor(0.0)


class DrawsInPython(Plain):
    """Multiplies by what Python's generator gives, also where it is evaluated."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.draw()

    def draw(self) -> float:
        """A number from 0 to 1."""
        return random.random()


class DrawsInNumpy(DrawsInPython):
    """The same with NumPy's."""

    def draw(self) -> float:
        """A number from 0 to 1."""
        return float(np.random.rand())


class Scales(Plain):
    """Gives its inputs another scale."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * 1.5)


class ScalesInPlace(Plain):
    """The same in the tensor that it was given."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(1.5))
