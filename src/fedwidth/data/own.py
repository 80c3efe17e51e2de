"""Data of one's own: from tensors, from PyTorch's data sets, and from a data set or loader for each client.

What is given as a data set is read into memory or, with `cache`, when it is asked for: then at most so many MiB of
samples are held. Both give the same batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, default_collate

from fedwidth.data.checks import as_users, check_users, checked, checked_labels, data_of
from fedwidth.data.reading import Collate, Column, Reader, read_all, read_several
from fedwidth.data.records import KINDS, Data, Kind, Split
from fedwidth.data.transforms import Transform
from fedwidth.data.trees import Tree
from fedwidth.errors import DataError, OptionError, unknown

MEBIBYTE = 2**20
UNNAMED = ("tensors", "dataset", "clients")
"""What data are called that nobody has named."""


def from_tensors(
    train_inputs: Tree,
    train_targets: Tree,
    test_inputs: Tree,
    test_targets: Tree,
    *,
    name: str = "tensors",
    classes: int | None = None,
    kind: Kind = "tensors",
    transform: Transform | None = None,
    train_users: Tensor | None = None,
    test_users: Tensor | None = None,
) -> Data:
    """Data from tensors already in memory; `classes` is the highest target (of tokens: number) + 1 unless given.

    Inputs and targets may also be tuples or dictionaries of tensors. Targets of numbers that are not whole have no
    classes. Unless a transform is given, bytes (uint8) are divided by 255 and all else is taken as it is.

    >>> x, y = torch.rand(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    >>> data = from_tensors(x, y, x, y)
    >>> data.classes, data.shape, len(data.train)
    (3, (4,), 6)
    """
    if kind not in KINDS:
        raise unknown("kind of data", kind, KINDS)
    train = checked("training", train_inputs, train_targets, train_users)
    test = checked("test", test_inputs, test_targets, test_users)
    return data_of(name, train, test, classes=classes, kind=kind, transform=transform)


def from_dataset(
    train: Any,
    test: Any,
    *,
    name: str = "dataset",
    cache: int | None = None,
    classes: int | None = None,
    kind: Kind = "tensors",
    transform: Transform | None = None,
    train_users: Tensor | None = None,
    test_users: Tensor | None = None,
) -> Data:
    """Data from two map-style PyTorch data sets (or loaders of them) of (input, target) pairs.

    Inputs may be tuples or dictionaries, and samples dictionaries with their target under "labels". Without `cache`
    each sample is read once, into memory; with it, when it is asked for, and at most so many MiB are held for each of
    the two. The data sets' own transforms run while reading, so give random augmentation as `transform=` instead: a
    sample must be the same whenever it is read. A loader's order and batch size are the settings' to say, not its own.
    """
    if kind not in KINDS:
        raise unknown("kind of data", kind, KINDS)
    splits = []
    for which, given, users in (("training", train, train_users), ("test", test, test_users)):
        dataset, collate = _unpacked(given, which)
        splits.append(_split(Reader(dataset, which, cache=(cache or 0) * MEBIBYTE, collate=collate), cache, users))
    return data_of(name, *splits, classes=classes, kind=kind, transform=transform)


def from_clients(
    train: Sequence[Any], test: Any, *, name: str = "clients", cache: int | None = 256, **options: Any
) -> Data:
    """Data from one map-style data set (or loader) for each client; partition it with `natural`.

    `test` is a data set for each client too, or one for all. Options as for `from_dataset`.
    """
    whole, users = _of_clients(train, "training")
    if empty := torch.nonzero(torch.bincount(users, minlength=len(train)) == 0).flatten().tolist():
        clients = ", ".join(map(str, empty))
        raise DataError(f"the training data set of client {clients} has no samples: leave out who has none to train on")
    if isinstance(test, Sequence):
        tests, test_users = _of_clients(test, "test")
        return from_dataset(whole, tests, name=name, cache=cache, train_users=users, test_users=test_users, **options)
    return from_dataset(whole, test, name=name, cache=cache, train_users=users, **options)


class OneAfterTheOther:
    """The samples of several data sets as one: those of the first come first."""

    def __init__(self, datasets: Sequence[Any]) -> None:
        self.datasets = datasets
        self.ends = list(accumulate(len(dataset) for dataset in datasets))
        listed = [getattr(dataset, "targets", None) for dataset in datasets]
        if all(isinstance(targets, list | np.ndarray | Tensor) for targets in listed):
            self.targets = np.concatenate([np.asarray(targets) for targets in listed])

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, number: int) -> Any:
        which, place = self._find(number)
        return self.datasets[which][place]

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        """Several samples, those of one data set at once where it can."""
        first, start, end = self._range(numbers[0])
        if all(start <= number < end for number in numbers):  # of one client, as batches to train on are
            return read_several(self.datasets[first], [number - start for number in numbers])
        places: dict[int, list[int]] = {}
        for which, place in map(self._find, numbers):
            places.setdefault(which, []).append(place)
        found = {which: iter(read_several(self.datasets[which], own)) for which, own in places.items()}
        return [next(found[self._find(number)[0]]) for number in numbers]

    def _find(self, number: int) -> tuple[int, int]:
        """The data set that has a sample, and its number there."""
        which, start, _ = self._range(number)
        return which, number - start

    def _range(self, number: int) -> tuple[int, int, int]:
        """The data set that has a sample, and the first of its numbers and the one behind its last."""
        which = bisect_right(self.ends, number)
        return which, self.ends[which - 1] if which else 0, self.ends[which]


def _of_clients(datasets: Sequence[Any], which: str) -> tuple[Any, Tensor]:
    """The clients' data sets as one, or as a loader with what makes their batches; and whose each sample is."""
    if not isinstance(datasets, Sequence) or not len(datasets):
        raise OptionError(f"the {which} data must be a list with a data set for each client")
    found = [_unpacked(dataset, f"{which} data of client {client}: its") for client, dataset in enumerate(datasets)]
    for client, (dataset, _) in enumerate(found):
        if not hasattr(dataset, "__len__"):
            raise OptionError(f"the {which} data set of client {client} must have a length and be indexed by number")
    collates = {collate for _, collate in found}
    if len(collates) > 1:
        raise OptionError(f"the loaders of the clients' {which} data must make batches alike: one collate_fn for all")
    sizes = torch.tensor([len(dataset) for dataset, _ in found])
    if not int(sizes.sum()):
        raise DataError(f"the {which} set has no samples")
    whole: Any = OneAfterTheOther([dataset for dataset, _ in found])
    (collate,) = collates
    if collate is not None:
        whole = DataLoader(whole, collate_fn=collate)
    return whole, torch.arange(len(sizes)).repeat_interleave(sizes)


def _unpacked(given: Any, which: str) -> tuple[Any, Collate | None]:
    """A data set and what makes a batch of its samples, where that is not PyTorch's own way."""
    if not isinstance(given, DataLoader):
        if isinstance(given, IterableDataset):
            raise OptionError(f"the {which} data set must have a length and be indexed by number")
        return given, None
    if isinstance(given.dataset, IterableDataset):
        raise OptionError(f"the {which} data set must have a length and be indexed by number")
    if not isinstance(given.sampler, SequentialSampler | RandomSampler):
        raise OptionError(
            f"the loader of the {which} data set draws its samples with a {type(given.sampler).__name__}, which is not"
            " used: give it a torch.utils.data.Subset of those that count"
        )
    return given.dataset, None if given.collate_fn is default_collate else given.collate_fn


def _split(reader: Reader, cache: int | None, users: Tensor | None) -> Split:
    """What a reader reads, in memory, or as columns that read."""
    if cache is None:
        return checked(reader.which, *read_all(reader), users)
    if type(cache) is not int or cache < 0:
        raise OptionError(f"cache must be a whole number of MiB, not {cache!r}")
    check_users(reader.which, len(reader), users)
    inputs, targets = Column(reader, 0), Column(reader, 1)
    first = targets[:1]
    if isinstance(first, Tensor) and first.dim() == 1 and not first.is_floating_point():
        # Who has which label must be known before training: one number for each sample, which is held.
        labels = torch.cat([_known(reader, start) for start in range(0, len(reader), 1000)])
        return Split(inputs, checked_labels(reader.which, labels), as_users(users))
    return Split(inputs, targets, as_users(users))


def _known(reader: Reader, start: int) -> Tensor:
    """The labels of up to 1,000 samples: as the data set lists them (torchvision's do), or by reading."""
    numbers = range(start, min(start + 1000, len(reader)))
    listed = getattr(reader.dataset, "targets", None)
    if reader.collate is None and isinstance(listed, list | np.ndarray | Tensor) and len(listed) == len(reader):
        known = torch.as_tensor(listed[numbers.start : numbers.stop])
        read = reader.read([numbers[0], numbers[-1]])[1]
        if isinstance(read, Tensor) and known.dim() == 1 and read.tolist() == [known[0], known[-1]]:
            return known
    found = reader.read(numbers)[1]
    assert isinstance(found, Tensor)
    return found
