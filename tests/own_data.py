"""Data of one's own, as recipes name it: `own_data:on_disk` and others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

from fedwidth.data import Data, Partition, Shares, from_tensors

SAMPLES, TESTS, CLASSES = 120, 40, 3


def numbers(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of three classes that a line tells apart, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(SAMPLES + TESTS) % CLASSES
    return torch.randn(SAMPLES + TESTS, 6, generator=generator) + 2 * torch.eye(CLASSES, 6)[labels], labels


class Files(Dataset):
    """One file for each sample."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.npz"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
        with np.load(self.paths[number], allow_pickle=False) as file:
            return file["x"], int(file["y"])


def on_disk(*, root: str | None = None, part: str = "") -> tuple[Files, Files]:
    """Data sets of the files in a folder."""
    folder = Path(root or ".") / part
    return Files(folder / "train"), Files(folder / "test")


def write_files(folder: Path) -> None:
    """The files that `on_disk` reads."""
    points, labels = numbers()
    for part, chosen in (("train", range(SAMPLES)), ("test", range(SAMPLES, SAMPLES + TESTS))):
        (folder / part).mkdir(parents=True)
        for number in chosen:
            np.savez(folder / part / f"{number:04}.npz", x=points[number].numpy(), y=labels[number].numpy())


def in_memory(*, seed: int = 0) -> Data:
    """The same, as tensors."""
    points, labels = numbers(seed)
    return from_tensors(points[:SAMPLES], labels[:SAMPLES], points[SAMPLES:], labels[SAMPLES:])


def pair() -> tuple[TensorDataset, TensorDataset]:
    """The same, as data sets."""
    data = in_memory()
    return TensorDataset(data.train.inputs, data.train.targets), TensorDataset(data.test.inputs, data.test.targets)


def with_a_name() -> Data:
    return replace(in_memory(), name="weather")


def broken() -> None:
    raise FileNotFoundError("no such folder: /nowhere")


def nothing() -> list:
    return []


def sorted_by_input(data: Data, clients: int, seed: int, *, feature: int = 0) -> Partition:
    """A partition that looks at the samples: those with the least of a feature are the first client's."""

    def shares(inputs: torch.Tensor) -> Shares:
        rank = inputs.flatten(1)[:, feature].argsort(stable=True).argsort()
        return Shares.of(rank * clients // len(inputs), clients)

    return Partition("sorted", shares(data.train.inputs), shares(data.test.inputs), data.train.labels)


def one_for_each_class(data: Data, clients: int, seed: int) -> Shares:
    """What is no partition yet."""
    return Shares.of(data.train.labels, data.classes)


def of_other_data(data: Data, clients: int, seed: int) -> Partition:
    """A partition of half of the data."""
    return sorted_by_input(replace(data, train=data.train.take(torch.arange(len(data.train) // 2))), clients, seed)


def of_two_clients(data: Data, clients: int, seed: int) -> Partition:
    """A partition that takes no notice of how many clients there are to be."""
    return sorted_by_input(data, 2, seed)


def failing_partition(data: Data, clients: int, seed: int) -> Partition:
    """A partition that cannot be made."""
    raise KeyError("region")
