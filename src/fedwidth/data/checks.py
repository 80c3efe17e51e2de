"""Whether inputs, targets and users fit each other, training and test data, and a partition and the data it is of."""

from __future__ import annotations

import torch
from torch import Tensor

from fedwidth.data.reading import Column
from fedwidth.data.records import AS_STORED, IGNORE, Data, Kind, Split
from fedwidth.data.shares import Partition
from fedwidth.data.transforms import Transform
from fedwidth.data.trees import Tree, describe, leaves, mapped, widened
from fedwidth.errors import DataError


def data_of(
    name: str, train: Split, test: Split, *, classes: int | None, kind: Kind, transform: Transform | None
) -> Data:
    """Two splits as one data set, if they fit each other."""
    shown = [_first(split) for split in (train, test)]
    shapes = [describe(mapped(lambda tensor: tensor[0], first)) for first in shown]
    if shapes[0] != shapes[1] and not (train.is_lazy and _collates(train)):
        raise DataError(f"training and test inputs have different shapes: {shapes[0]} and {shapes[1]}")
    types = [[leaf.dtype for leaf in leaves(widened(first))] for first in shown]
    if types[0] != types[1]:
        found = [", ".join(str(leaf.dtype).removeprefix("torch.") for leaf in leaves(first)) for first in shown]
        raise DataError(f"training inputs are {found[0]}, but test inputs {found[1]}: they must be alike")
    kinds = [_kind_of(split) for split in (train, test)]
    if kinds[0] != kinds[1]:
        raise DataError(f"training targets are {kinds[0]}, but test targets {kinds[1]}: they must be alike")
    inputs = shown[0]
    if kind == "images" and not (isinstance(inputs, Tensor) and inputs.dim() == 4):
        raise DataError(f"images must be [samples, channels, height, width], not {describe(inputs)}")
    if transform is None:
        bytes_ = isinstance(inputs, Tensor) and inputs.dtype == torch.uint8 and kind != "tokens"
        transform = Transform(scale=255) if bytes_ else AS_STORED
    elif not isinstance(inputs, Tensor) and transform != AS_STORED:
        raise DataError("a transform is for inputs that are one tensor, and these are several: leave it out")
    return Data(name, train, test, _count_classes(train, test, classes, kind), kind=kind, transform=transform)


def _count_classes(train: Split, test: Split, classes: int | None, kind: Kind) -> int:
    known = [split.labels for split in (train, test)]
    if any(isinstance(labels, Column) for labels in known):
        if classes is None:
            raise DataError(
                "the classes of targets that are read as they are needed are not known: say how many, classes=…"
            )
        return classes
    counted = [labels for labels in known if isinstance(labels, Tensor) and labels.numel()]
    if kind == "tokens":
        counted += [split.inputs for split in (train, test) if isinstance(split.inputs, Tensor)]
    found = 1 + max((int(numbers.max()) for numbers in counted), default=-1)
    if classes is not None and found > classes:
        raise DataError(f"found the class {found - 1}, but {classes} classes go from 0 to {classes - 1}")
    return found if classes is None else classes


def _first(split: Split) -> Tree:
    return split.read(slice(1))[0]


def _kind_of(split: Split) -> str:
    """What targets are, for messages: "whole numbers" and the like."""
    first = leaves(split.read(slice(1))[1])[0]
    if first.dtype == torch.bool:
        return "truth values"
    return "numbers with a fraction" if first.is_floating_point() else "whole numbers"


def _collates(split: Split) -> bool:
    return isinstance(split.inputs, Column) and split.inputs.reader.collate is not None


def checked(which: str, inputs: Tree, targets: Tree, users: Tensor | None) -> Split:
    """A split of samples in memory, if inputs, targets and users fit each other."""
    for what, tree in (("inputs", inputs), ("targets", targets)):
        if not isinstance(tree, Tensor | dict | tuple) or not all(isinstance(leaf, Tensor) for leaf in leaves(tree)):
            raise DataError(f"the {which} {what} must be a tensor, not {_kind(tree)}")
        for leaf in leaves(tree):
            if leaf.layout != torch.strided or leaf.is_quantized:
                how = "quantised" if leaf.is_quantized else str(leaf.layout)
                raise DataError(f"the {which} {what} must be dense tensors, not {how}: give .to_dense()")
    found = leaves(inputs)
    if not found or found[0].dim() == 0 or len(found[0]) == 0:
        raise DataError(f"the {which} set has no samples")
    for what, tree in (("inputs", inputs), ("targets", targets)):
        for leaf in leaves(tree):
            if leaf.dim() == 0 or len(leaf) != len(found[0]):
                number = len(leaf) if leaf.dim() else "one number for all"
                raise DataError(f"the {which} set has {len(found[0])} inputs but {number} {what}")
    check_users(which, len(found[0]), users)
    for leaf in found:
        if leaf.is_floating_point() and not bool(torch.isfinite(leaf).all()):
            raise DataError(f"the {which} inputs hold values that are not finite")
    for leaf in leaves(targets):
        if leaf.is_floating_point() and bool(torch.isinf(leaf).any()):
            raise DataError(f"the {which} targets hold values that are infinite")
    inputs, targets = (mapped(lambda tensor: tensor.detach().cpu(), tree) for tree in (inputs, targets))
    if isinstance(targets, Tensor) and not targets.is_floating_point() and not targets.is_complex():
        targets = targets if targets.dtype == torch.bool else checked_labels(which, targets)
    return Split(inputs, targets, as_users(users))


def checked_labels(which: str, labels: Tensor) -> Tensor:
    """Targets that are whole numbers, as int64."""
    labels = labels.long()
    if bool(((labels < 0) & (labels != IGNORE)).any()):
        raise DataError(
            f"the {which} targets must not be negative (but {IGNORE} for ignored), found {int(labels.min())}"
        )
    return labels


def check_users(which: str, samples: int, users: Tensor | None) -> None:
    """There must be a user for every sample, where users are given."""
    if users is None:
        return
    if not isinstance(users, Tensor):
        raise DataError(f"the {which} users must be a tensor, not {type(users).__name__}")
    if users.shape != (samples,):
        raise DataError(f"the {which} set has {samples} inputs but users of shape {list(users.shape)}")


def as_users(users: Tensor | None) -> Tensor | None:
    """Users as they are stored."""
    return None if users is None else users.detach().cpu().long()


def check_partition(partition: Partition, data: Data) -> None:
    """Refuse a partition of other samples than the data's."""
    tested = partition.test_split(data)
    _check_samples("training", len(partition.targets), len(data.train))
    _check_labels(partition.targets, data.train.labels)
    _check_samples("training", partition.train.owners, len(data.train))
    _check_samples("test", partition.test.owners or None, len(tested))  # of none, nobody has any
    for which, shares, split in (("training", partition.train, data.train), ("test", partition.test, tested)):
        numbers = shares.samples if len(shares.samples) else torch.zeros(1)
        low, high = int(numbers.min()), int(numbers.max())
        if low < 0 or high >= len(split):
            raise DataError(
                f"the partition has {which} samples from {low} to {high}, but those of the data are numbered from 0 to"
                f" {len(split) - 1}"
            )


def _check_labels(labels: object, there: object) -> None:
    """The partition may do without labels, but must not have others; those that are read as needed are not compared."""
    if isinstance(labels, Tensor) and isinstance(there, Tensor) and labels.numel() and there.numel():
        if labels.shape != there.shape:
            shapes = f"{list(labels.shape)}, those of the data {list(there.shape)}"
            raise DataError(f"the labels of the partition have the shape {shapes}: they must be alike")
        if not bool((labels.cpu() == there.cpu()).all()):
            raise DataError(
                "the partition has other labels than the training samples of the data: make it of the same data"
            )


def _check_samples(which: str, shared: int | None, there: int) -> None:
    if shared is not None and shared != there:
        raise DataError(
            f"the partition is of {shared} {which} samples, but the data has {there}: make it of the same data"
        )


def _kind(tree: object) -> str:
    if isinstance(tree, dict | tuple):
        return f"a {type(tree).__name__} that holds something else"
    return type(tree).__name__
