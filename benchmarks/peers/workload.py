"""The workload every peer trains: one file of data, first weights, cohorts and orders of samples, and how to report.

FedAvg on a small CNN (58,632 parameters): 100 clients, 10 a round, 50 samples each of 32 x 32 x 3, batch 10, one
epoch, plain SGD, one thread. Imports PyTorch alone, since each peer runs in an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

CLIENTS, PER_ROUND, SAMPLES, BATCH, CLASSES = 100, 10, 50, 10, 10
LEARNING_RATE = 0.05


class TinyCnn(nn.Sequential):
    """Two convolutions, two linear layers."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2048, 26),
            nn.ReLU(),
            nn.Linear(26, CLASSES),
        )


@dataclass(frozen=True)
class Workload:
    """What was generated: client c has the samples 50 c … 50 c + 49."""

    inputs: Tensor
    targets: Tensor
    cohorts: Tensor
    """Who trains in each round [rounds, 10]."""
    orders: Tensor
    """Sample numbers of each of them in the order of training [rounds, 10, 50]."""
    weights: dict[str, Tensor]
    """The model every peer starts from."""

    @classmethod
    def read(cls, path: Path) -> Workload:
        """From a file."""
        return cls(**torch.load(path, weights_only=True))

    def save(self, path: Path) -> None:
        """To a file."""
        torch.save(vars(self), path)

    @property
    def rounds(self) -> int:
        """Rounds to train."""
        return len(self.cohorts)

    def model(self) -> TinyCnn:
        """A new model with the first weights."""
        model = TinyCnn().to(self.inputs.dtype)
        model.load_state_dict(self.weights)
        return model

    def samples(self, round: int, position: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a client in the order of training."""
        order = self.orders[round, position]
        return self.inputs[order], self.targets[order]


@lru_cache(maxsize=1)
def read_once(path: str) -> tuple[Workload, TinyCnn]:
    """The workload and a model, kept for the next client that asks in this process."""
    workload = Workload.read(Path(path))
    return workload, workload.model()


def run(train: Callable[[Workload, argparse.Namespace, Clock], Mapping[str, Tensor]]) -> None:
    """What every script does: read the workload, train, write the seconds and the final weights."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("out", type=Path, help="without suffix: .json and .pt are written")
    parser.add_argument("--began", type=float, default=time.time(), help="when the process was started")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--engine", default="serial", help="of fedwidth")
    parser.add_argument("--channels-last", action="store_true", help="images and kernels, in the hand-written loop")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    clock = Clock()
    final = train(Workload.read(arguments.file), arguments, clock)
    arguments.out.with_suffix(".json").write_text(
        json.dumps({"start": clock.ends[0] - arguments.began, "seconds": clock.seconds})
    )
    torch.save({name: tensor.detach().clone() for name, tensor in final.items()}, arguments.out.with_suffix(".pt"))


class Clock:
    """When each round ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def lap(self) -> None:
        """A round has ended."""
        self.ends.append(time.time())

    @property
    def seconds(self) -> list[float]:
        """Of each round but the first, which warms up, and the last, after which some evaluate."""
        return [after - before for before, after in zip(self.ends[:-2], self.ends[1:-1], strict=True)]
