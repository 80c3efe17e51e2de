"""What a data set is to the rest of fedwidth, and how to make one from tensors or a PyTorch data set.

Tensors stay on the CPU as stored: images uint8 [N, C, H, W] with int64 targets [N]; text as token numbers [N, length]
in the smallest integer type that fits, targets the next token, `IGNORE` where the text has ended. `Data.batch` gives
what a model takes: floats or int64 tokens, int64 targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedwidth.data.transforms import Transform
from fedwidth.errors import DataError, OptionError, unknown

IGNORE = -100
"""A target that is neither trained nor counted (the default of torch's cross entropy)."""

Kind = Literal["images", "tokens", "tensors"]
AS_STORED = Transform()
KINDS = ("images", "tokens", "tensors")


@dataclass(frozen=True, eq=False)
class Split:
    """Samples of the training or the test set; `users[i]` is the user number of sample i where that is known."""

    inputs: Tensor
    targets: Tensor
    users: Tensor | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, samples: Tensor) -> Split:
        """A split of these samples alone."""
        chosen = samples.to(self.inputs.device)
        users = None if self.users is None else self.users[samples]
        return Split(self.inputs[chosen], self.targets[chosen], users)

    def to(self, device: torch.device) -> Split:
        """The same samples on a device; `users` stay where they are."""
        return Split(self.inputs.to(device), self.targets.to(device), self.users)


@dataclass(frozen=True, eq=False)
class Data:
    """A data set: training and test split, number of classes (or tokens), and how a batch reaches the model."""

    name: str
    train: Split
    test: Split
    classes: int
    kind: Kind = "tensors"
    transform: Transform = AS_STORED
    vocabulary: tuple[str, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.train.inputs.shape[1:])

    def to(self, device: torch.device) -> Data:
        """The same data with its samples on a device."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))

    def example(self, samples: int = 2) -> Tensor:
        """The first training inputs as a model takes them, to trace it with."""
        return self.transform(self.train.inputs[:samples])

    def batch(
        self,
        split: Split,
        samples: Tensor,
        *,
        train: bool = False,
        generator: torch.Generator | None = None,
        device: str | torch.device | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Inputs and int64 targets of these sample numbers, on `device`, as the model and the loss take them."""
        inputs, targets = split.inputs[samples], split.targets[samples]
        if device is not None:
            inputs, targets = inputs.to(device), targets.to(device)
        return self.transform(inputs, train, generator), targets.long()


def from_tensors(
    train_inputs: Tensor,
    train_targets: Tensor,
    test_inputs: Tensor,
    test_targets: Tensor,
    *,
    name: str = "tensors",
    classes: int | None = None,
    kind: Kind = "tensors",
    transform: Transform | None = None,
    train_users: Tensor | None = None,
    test_users: Tensor | None = None,
) -> Data:
    """Data from tensors already in memory; `classes` is the highest target (of tokens: number) + 1 unless given.

    Unless a transform is given, bytes (uint8) are divided by 255 and all else is taken as it is.

    >>> x, y = torch.rand(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    >>> data = from_tensors(x, y, x, y)
    >>> data.classes, data.shape, len(data.train)
    (3, (4,), 6)
    """
    if kind not in KINDS:
        raise unknown("kind of data", kind, KINDS)
    train = _checked("training", train_inputs, train_targets, train_users)
    test = _checked("test", test_inputs, test_targets, test_users)
    if train.inputs.shape[1:] != test.inputs.shape[1:]:
        shapes = f"{list(train.inputs.shape[1:])} and {list(test.inputs.shape[1:])}"
        raise DataError(f"training and test inputs have different shapes: {shapes}")
    if kind == "images" and train.inputs.dim() != 4:
        raise DataError(f"images must be [samples, channels, height, width], not {list(train.inputs.shape)}")
    if transform is None:
        transform = Transform(scale=255) if train.inputs.dtype == torch.uint8 and kind != "tokens" else AS_STORED
    counted = [train.targets, test.targets, *((train.inputs, test.inputs) if kind == "tokens" else ())]
    found = 1 + max(int(numbers.max()) for numbers in counted)
    if classes is not None and found > classes:
        raise DataError(f"found the class {found - 1}, but {classes} classes go from 0 to {classes - 1}")
    return Data(name, train, test, classes or found, kind=kind, transform=transform)


def from_dataset(train: Dataset[Any], test: Dataset[Any], *, name: str = "dataset", **options: Any) -> Data:
    """Data from two PyTorch data sets of (input, target) pairs, each read once; options as in `from_tensors`.

    Their own transforms run once, while reading: give random augmentation as `transform=` instead.
    """
    train_inputs, train_targets = _read(train, "training")
    test_inputs, test_targets = _read(test, "test")
    return from_tensors(train_inputs, train_targets, test_inputs, test_targets, name=name, **options)


def _checked(which: str, inputs: Tensor, targets: Tensor, users: Tensor | None) -> Split:
    for what, tensor in (("inputs", inputs), ("targets", targets), ("users", users)):
        if tensor is not None and not isinstance(tensor, Tensor):
            raise DataError(f"the {which} {what} must be a tensor, not {type(tensor).__name__}")
    if inputs.dim() == 0 or len(inputs) == 0:
        raise DataError(f"the {which} set has no samples")
    if targets.dim() == 0 or len(inputs) != len(targets):
        found = len(targets) if targets.dim() else "one number for all"
        raise DataError(f"the {which} set has {len(inputs)} inputs but {found} targets")
    if users is not None and users.shape != (len(inputs),):
        raise DataError(f"the {which} set has {len(inputs)} inputs but users of shape {list(users.shape)}")
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise DataError(f"the {which} targets must be whole numbers (class labels), not {targets.dtype}")
    targets = targets.detach().cpu().long()
    if bool(((targets < 0) & (targets != IGNORE)).any()):
        raise DataError(
            f"the {which} targets must not be negative (but {IGNORE} for ignored), found {int(targets.min())}"
        )
    inputs = inputs.detach().cpu()
    if inputs.is_floating_point() and not bool(torch.isfinite(inputs).all()):
        raise DataError(f"the {which} inputs hold values that are not finite")
    return Split(inputs, targets, None if users is None else users.detach().cpu().long())


def _read(dataset: Dataset[Any], which: str) -> tuple[Tensor, Tensor]:
    try:
        samples = len(dataset)  # type: ignore[arg-type]
    except TypeError:
        raise OptionError(f"the {which} data set must have a length and be indexed by number") from None
    if samples == 0:
        raise DataError(f"the {which} set has no samples")
    inputs: list[Tensor] = []
    targets: list[int | Tensor] = []
    for number in range(samples):
        pair = dataset[number]
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise DataError(f"sample {number} of the {which} data set is not an (input, target) pair")
        value, target = pair
        if not isinstance(value, Tensor | np.ndarray | float | int):
            raise DataError(
                f"sample {number} of the {which} data set is a {type(value).__name__}, not a tensor:"
                " give the data set a transform that makes one"
            )
        inputs.append(torch.as_tensor(value))
        targets.append(target)
    try:
        return torch.stack(inputs), torch.stack([torch.as_tensor(target) for target in targets])
    except (RuntimeError, TypeError, ValueError) as error:
        raise DataError(f"the samples of the {which} data set do not have one shape: {error}") from None
