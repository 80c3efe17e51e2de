"""Samples that are read when they are asked for: data larger than memory, from any map-style data set.

A `Reader` keeps the samples it read last, up to so many bytes. A `Column` is its inputs or its targets, and stands
where a tensor of all of them would: `column[numbers]` reads those.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedwidth.data.trees import Tree, bytes_of, joined, leaves
from fedwidth.errors import DataError, OptionError

TARGETS = ("labels", "label")
"""The names under which samples that are dictionaries have their target, as Hugging Face's data sets do."""

Collate = Callable[[list[Any]], Any]
"""Makes a batch of samples, as a `DataLoader` takes it."""


class Reader:
    """A map-style data set of (input, target) pairs; an input may also be a tuple or a dictionary of tensors."""

    def __init__(self, dataset: Any, which: str, *, cache: int, collate: Collate | None = None) -> None:
        self.dataset, self.which, self.cache, self.collate = dataset, which, cache, collate
        try:
            self._samples = len(dataset)
        except TypeError:
            raise OptionError(f"the {which} data set must have a length and be indexed by number") from None
        if self._samples == 0:
            raise DataError(f"the {which} set has no samples")
        self._held: OrderedDict[int, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return self._samples

    def __getstate__(self) -> dict[str, Any]:
        """Another process reads for itself: what is held here is not sent to it."""
        return {**vars(self), "_held": OrderedDict(), "_bytes": 0}

    def read(self, samples: Sequence[int]) -> tuple[Tree, Tree]:
        """Inputs and targets of these samples."""
        found = self._found(samples)
        if self.collate is not None:
            return _pair(self._collated([found[number] for number in samples]), f"a batch of the {self.which} data set")
        try:
            inputs = joined([found[number][0] for number in samples], torch.stack)
            return inputs, joined([found[number][1] for number in samples], torch.stack)
        except (RuntimeError, TypeError, KeyError, IndexError) as error:
            raise DataError(f"the samples of the {self.which} data set do not have one shape: {error}") from None

    def _collated(self, samples: list[Any]) -> Any:
        assert self.collate is not None
        return self.collate(samples)

    def _found(self, samples: Sequence[int]) -> dict[int, Any]:
        """These samples by number, those that are held or else read now."""
        found: dict[int, Any] = {}
        missing = []
        for number in dict.fromkeys(samples):
            if number in self._held:
                self._held.move_to_end(number)
                found[number] = self._held[number][0]
            else:
                missing.append(number)
        for number, raw in zip(missing, self._fetch(missing), strict=True):
            found[number] = self._keep(number, raw)
        return found

    def _fetch(self, numbers: list[int]) -> list[Any]:
        if not numbers:
            return []
        if hasattr(self.dataset, "__getitems__"):  # PyTorch's way to read several at once
            return list(self.dataset.__getitems__(numbers))
        return [self.dataset[number] for number in numbers]

    def _keep(self, number: int, raw: Any) -> Any:
        """Hold a sample that was read; where there are too many, let go of those nobody asked for the longest."""
        sample = raw if self.collate is not None else _pair(raw, f"sample {number} of the {self.which} data set")
        size = _size(sample)
        if size <= self.cache:
            self._held[number] = sample, size
            self._bytes += size
            while self._bytes > self.cache:
                self._bytes -= self._held.popitem(last=False)[1][1]
        return sample


@dataclass(frozen=True, eq=False)
class Column:
    """The inputs or the targets of a reader's samples, in an order of its own where it has one."""

    reader: Reader
    part: int
    """0 for inputs, 1 for targets."""
    order: Tensor | None = None

    def __len__(self) -> int:
        return len(self.reader) if self.order is None else len(self.order)

    def __getitem__(self, samples: Tensor | slice) -> Any:
        return self.reader.read(self.numbers(samples))[self.part]

    def numbers(self, samples: Tensor | slice) -> list[int]:
        """The reader's numbers of these samples."""
        if isinstance(samples, slice):
            samples = torch.arange(len(self))[samples]
        chosen: list[int] = (samples if self.order is None else self.order[samples.cpu()]).tolist()
        return chosen

    def take(self, samples: Tensor) -> Column:
        """A column of these samples alone."""
        samples = samples.cpu()
        return Column(self.reader, self.part, samples if self.order is None else self.order[samples])

    @property
    def shape(self) -> torch.Size:
        """How many there are, and the shape of the first."""
        first = leaves(self[:1])[0]
        return torch.Size((len(self), *first.shape[1:]))

    def dim(self) -> int:
        """How many dimensions a tensor of all of them would have."""
        return len(self.shape)

    def cpu(self) -> Column:
        """Itself: samples are read into the memory of the processor."""
        return self


def read_all(reader: Reader, *, at_a_time: int = 1000) -> tuple[Tree, Tree]:
    """The inputs and the targets of all samples, in memory."""
    starts = range(0, len(reader), at_a_time)
    pairs = [reader.read(range(start, min(start + at_a_time, len(reader)))) for start in starts]
    try:
        inputs, targets = (joined([pair[part] for pair in pairs], torch.cat) for part in (0, 1))
    except (RuntimeError, TypeError, KeyError, IndexError) as error:
        raise DataError(f"the samples of the {reader.which} data set do not have one shape: {error}") from None
    return inputs, targets


def _pair(sample: Any, which: str) -> tuple[Tree, Tree]:
    """The input and the target of a sample, or of a batch of them."""
    if isinstance(sample, Mapping):
        name = next((name for name in TARGETS if name in sample), None)
        if name is None:
            raise DataError(f"{which} is a dictionary without 'labels', so what is to be predicted is not known")
        inputs: Any = {key: value for key, value in sample.items() if key != name}
        target = sample[name]
    elif isinstance(sample, Sequence) and not isinstance(sample, str) and len(sample) >= 2:
        *first, target = sample
        inputs = first[0] if len(first) == 1 else tuple(first)
    else:
        raise DataError(f"{which} is not an (input, target) pair")
    return _tree(inputs, which, "input"), _tree(target, which, "target")


def _tree(value: Any, which: str, what: str) -> Tree:
    if isinstance(value, Mapping):
        return {str(name): _tensor(each, which, what) for name, each in value.items()}
    if isinstance(value, tuple) and value:
        return tuple(_tensor(each, which, what) for each in value)
    return _tensor(value, which, what)


def _tensor(value: Any, which: str, what: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, np.ndarray | np.generic | float | int | list):
        raise DataError(
            f"the {what} of {which} is a {type(value).__name__}, not a tensor: give the data set a transform that makes"
            " one"
        )
    if isinstance(value, np.ndarray) and not value.flags.writeable:  # PyTorch knows no tensors that may only be read
        value = value.copy()
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"the {what} of {which} is not numbers: {error}") from None


def _size(sample: Any) -> int:
    """The memory a sample takes, as far as tensors and arrays go."""
    if isinstance(sample, Tensor):
        return bytes_of(sample)
    if isinstance(sample, np.ndarray):
        return sample.nbytes
    inner = sample.values() if isinstance(sample, Mapping) else sample if isinstance(sample, tuple | list) else ()
    return sum(map(_size, inner)) or 8
