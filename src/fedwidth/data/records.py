"""What a data set is to the rest of fedwidth.

Tensors stay on the CPU as stored: images uint8 [N, C, H, W] with int64 targets [N]; text as token numbers [N, length]
in the smallest integer type that fits, targets the next token, `IGNORE` where the text has ended. Inputs and targets
may also be a tuple or a dictionary of tensors (`trees`), or be read when they are asked for (`reading`). `Data.batch`
gives what a model takes: floats or int64 tokens; targets of whole numbers as int64, all others as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from fedwidth.data.reading import Column
from fedwidth.data.transforms import Transform
from fedwidth.data.trees import Tree, count, leaves, mapped, widened

IGNORE = -100
"""A target that is neither trained nor counted (the default of torch's cross entropy)."""

Kind = Literal["images", "tokens", "tensors"]
AS_STORED = Transform()
KINDS = ("images", "tokens", "tensors")


@dataclass(frozen=True, eq=False)
class Split:
    """Samples of the training or the test set; `users[i]` is the user number of sample i where that is known."""

    inputs: Any
    """A tensor, a tuple or a dictionary of tensors, or a column that reads them (`Tree | Column`)."""
    targets: Any
    users: Tensor | None = None

    def __repr__(self) -> str:
        """In one line: its tensors are not for reading."""
        return f"Split({len(self)} samples{', each with its user' if self.users is not None else ''})"

    def __len__(self) -> int:
        return len(self.inputs) if isinstance(self.inputs, Column) else count(self.inputs)

    @property
    def is_lazy(self) -> bool:
        """Whether its samples are read when they are asked for."""
        return isinstance(self.inputs, Column)

    @cached_property
    def labels(self) -> Any:
        """The class labels of each sample, one [N] or several [N, …]; none [N, 0] where targets are not whole."""
        targets = self.targets
        if isinstance(targets, Column):
            found = targets[:1]
            return targets if isinstance(found, Tensor) and _is_whole(found) else _unlabelled(self)
        return targets if isinstance(targets, Tensor) and _is_whole(targets) else _unlabelled(self)

    def read(self, samples: Tensor | slice) -> tuple[Tree, Tree]:
        """The inputs and targets of these samples, as they are stored."""
        inputs, targets = self.inputs, self.targets
        if isinstance(inputs, Tensor) and isinstance(targets, Tensor):
            return inputs[samples], targets[samples]
        if isinstance(inputs, Column) and isinstance(targets, Column):
            return inputs.reader.read(inputs.numbers(samples))
        return _rows(inputs, samples), _rows(targets, samples)

    def take(self, samples: Tensor) -> Split:
        """A split of these samples alone."""
        users = None if self.users is None else self.users[samples]
        return Split(_taken(self.inputs, samples), _taken(self.targets, samples), users)

    def to(self, device: torch.device) -> Split:
        """The same samples on a device; `users`, and what is read when it is asked for, stay where they are."""
        return Split(_moved(self.inputs, device), _moved(self.targets, device), self.users)


@dataclass(frozen=True, eq=False)
class Data:
    """A data set: training and test split, number of classes (or tokens), and how a batch reaches the model."""

    name: str
    train: Split
    test: Split
    classes: int
    """0 where targets are no classes."""
    kind: Kind = "tensors"
    transform: Transform = AS_STORED
    vocabulary: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        """In one line: its tensors are not for reading."""
        return (
            f"Data('{self.name}', {self.kind} {list(self.shape)}, {len(self.train)} training and {len(self.test)} test"
            f" samples, {self.classes} classes)"
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input, or of its first tensor."""
        inputs = self.train.inputs
        return tuple(inputs.shape[1:]) if isinstance(inputs, Tensor | Column) else tuple(leaves(inputs)[0].shape[1:])

    @property
    def is_lazy(self) -> bool:
        """Whether training samples are read when they are asked for."""
        return self.train.is_lazy

    def to(self, device: torch.device) -> Data:
        """The same data with its samples on a device."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))

    def is_on(self, device: torch.device) -> bool:
        """Whether training samples are on a device of this kind, or go there batch by batch."""
        inputs = self.train.inputs
        return isinstance(inputs, Column) or leaves(inputs)[0].device.type == device.type

    def example(self, samples: int = 2) -> Any:
        """The first training inputs as a model takes them, to trace it with: copies, which it may change in place."""
        return self.batch(self.train, self._first(samples))[0]

    def example_targets(self, samples: int = 2) -> Any:
        """The targets of the first training samples, as a loss takes them."""
        return self.batch(self.train, self._first(samples))[1]

    def _first(self, samples: int) -> Tensor:
        return torch.arange(min(samples, len(self.train)), device="cpu")  # also where a model is made without values

    def batch(
        self,
        split: Split,
        samples: Tensor,
        *,
        train: bool = False,
        generator: torch.Generator | None = None,
        device: str | torch.device | None = None,
    ) -> tuple[Any, Any]:
        """Inputs and targets of these sample numbers, on `device`, as the model and the loss take them: copies."""
        inputs, targets = split.read(samples)
        if device is not None:
            inputs, targets = moved(inputs, device), moved(targets, device)
        return self.transform(inputs, train, generator), widened(targets)


def moved(tree: Tree, device: str | torch.device) -> Tree:
    """The same tensors on a device."""
    return tree.to(device) if isinstance(tree, Tensor) else mapped(lambda tensor: tensor.to(device), tree)


def _rows(column: Tree | Column, samples: Tensor | slice) -> Tree:
    if isinstance(column, Column):
        found: Tree = column[samples]
        return found
    return mapped(lambda tensor: tensor[samples], column)


def _taken(column: Tree | Column, samples: Tensor) -> Tree | Column:
    if isinstance(column, Column):
        return column.take(samples)
    return mapped(lambda tensor: tensor[samples.to(tensor.device)], column)


def _moved(column: Tree | Column, device: torch.device) -> Tree | Column:
    return column if isinstance(column, Column) else moved(column, device)


def _is_whole(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def _unlabelled(split: Split) -> Tensor:
    return torch.empty(len(split), 0, dtype=torch.long)
