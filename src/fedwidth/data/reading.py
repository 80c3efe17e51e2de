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

from fedwidth.data.rows import Rows
from fedwidth.data.trees import Tree, joined, leaves, mapped
from fedwidth.errors import DataError, FedwidthError, OptionError
from fedwidth.importing import what_failed

TARGETS = ("labels", "label")
"""The names under which samples that are dictionaries have their target, as Hugging Face's data sets do."""

NUMBER_BYTES = 8

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
        self._rows = Rows(most_bytes=cache, samples=self._samples)

    def __len__(self) -> int:
        return self._samples

    def __getstate__(self) -> dict[str, Any]:
        """Another process reads for itself: what is held here is not sent to it."""
        rows = Rows(most_bytes=self.cache, samples=self._samples)
        return {**vars(self), "_held": OrderedDict(), "_bytes": 0, "_rows": rows}

    def read(self, samples: Sequence[int]) -> tuple[Tree, Tree]:
        """Inputs and targets of these samples."""
        found = self._found(samples)
        if self.collate is not None:
            inputs, targets = _halves(self.collate(found), f"a batch of the {self.which} data set")
            return _tree(inputs, "batch", self.which), _tree(targets, "batch", self.which)
        pairs = [_halves(raw, f"sample {number} of the {self.which} data set") for number, raw in _both(samples, found)]
        return self._joined(samples, [pair[0] for pair in pairs]), self._joined(samples, [pair[1] for pair in pairs])

    def read_part(self, samples: Sequence[int], part: int) -> Tree:
        """The inputs (part 0) or the targets (part 1) of these samples."""
        if self.collate is not None:
            return self.read(samples)[part]
        halves = [
            _halves(raw, f"sample {number} of the {self.which} data set")[part]
            for number, raw in _both(samples, self._found(samples))
        ]
        return self._joined(samples, halves)

    def _joined(self, samples: Sequence[int], values: list[Any]) -> Tree:
        """One half of several samples as a batch."""
        try:
            if all(type(value) is Tensor for value in values):
                return torch.stack(values)
            trees = [_tree(value, f"sample {number}", self.which) for number, value in _both(samples, values)]
            return joined(trees, torch.stack)
        except (RuntimeError, TypeError, KeyError, IndexError) as error:
            raise DataError(f"the samples of the {self.which} data set do not have one shape: {error}") from None

    def _found(self, samples: Sequence[int]) -> list[Any]:
        """These samples as the data set gives them: held since they were read before, or read now."""
        found: dict[int, Any] = {}
        missing = []
        for number in samples:
            if number in self._held:
                self._held.move_to_end(number)
                found[number] = self._rows.get(self._held[number][0])
            elif number not in found:
                found[number] = None
                missing.append(number)
        if missing:
            for number, raw in _both(missing, self._read(missing)):
                found[number] = raw
                self._keep(number, raw)
        return [found[number] for number in samples]

    def _read(self, numbers: list[int]) -> list[Any]:
        """These samples, read now; a data set of the user's may fail in any way."""
        at_once = [numbers] if hasattr(self.dataset, "__getitems__") else [[number] for number in numbers]
        found = []
        for some in at_once:
            try:
                found += read_several(self.dataset, some)
            except FedwidthError:
                raise
            except Exception as error:
                which = f"sample {some[0]}" if len(some) == 1 else f"one of the samples {min(some)} to {max(some)}"
                raise DataError(
                    f"{which} of the {self.which} data set could not be read: {what_failed(error)}"
                ) from error
        return found

    def _keep(self, number: int, raw: Any) -> None:
        """Hold a sample that was read; where there are too many, let go of those nobody asked for the longest."""
        size = _size(raw)
        if size <= self.cache:
            self._held[number] = self._rows.put(raw), size
            self._bytes += size
            while self._bytes > self.cache:
                held, freed = self._held.popitem(last=False)[1]
                self._bytes -= freed
                self._rows.let_go(held)


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
        return self.reader.read_part(self.numbers(samples), self.part)

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


def read_several(dataset: Any, numbers: list[int]) -> list[Any]:
    """These samples of a data set, at once where it has PyTorch's method for that."""
    if hasattr(dataset, "__getitems__"):
        return list(dataset.__getitems__(numbers))
    return [dataset[number] for number in numbers]


def read_all(reader: Reader, *, at_a_time: int = 1000) -> tuple[Tree, Tree]:
    """The inputs and the targets of all samples, in memory: beside them there are never more than so many at a time."""
    whole: tuple[Tree, Tree] | None = None
    for start in range(0, len(reader), at_a_time):
        numbers = range(start, min(start + at_a_time, len(reader)))
        pair = reader.read(numbers)
        try:
            inputs, targets = whole or (_empty(pair[0], len(reader)), _empty(pair[1], len(reader)))
            whole = _with_rows(inputs, pair[0], numbers), _with_rows(targets, pair[1], numbers)
        except (RuntimeError, TypeError, KeyError, IndexError) as error:
            raise DataError(f"the samples of the {reader.which} data set do not have one shape: {error}") from None
    assert whole is not None, "a reader has samples"
    return whole


def _empty(tree: Tree, samples: int) -> Tree:
    """Room for so many samples like these."""
    return mapped(lambda tensor: tensor.new_empty((samples, *tensor.shape[1:])), tree)


def _with_rows(whole: Tree, rows: Tree, numbers: range) -> Tree:
    """All samples, with some more of them filled in."""

    def fill(both: list[Tensor]) -> Tensor:
        held, new = both
        if new.shape != (len(numbers), *held.shape[1:]):
            raise RuntimeError(
                f"the first are {list(held.shape[1:])}, and {len(numbers)} from {numbers.start} on {list(new.shape)}"
            )
        held = held.to(torch.promote_types(held.dtype, new.dtype))  # whole numbers at first, others later
        held[numbers.start : numbers.stop] = new
        return held

    if type(whole) is not type(rows) or len(leaves(whole)) != len(leaves(rows)):
        raise TypeError("some have other parts than others")
    return joined([whole, rows], fill)


def _halves(sample: Any, which: str) -> tuple[Any, Any]:
    """The input and the target of a sample, or of a batch of them."""
    if type(sample) is tuple and len(sample) == 2:
        return sample
    if isinstance(sample, Mapping):
        name = next((name for name in TARGETS if name in sample), None)
        if name is None:
            raise DataError(f"{which} is a dictionary without 'labels', so what is to be predicted is not known")
        return {key: value for key, value in sample.items() if key != name}, sample[name]
    if isinstance(sample, Sequence) and not isinstance(sample, str) and len(sample) >= 2:
        *first, target = sample
        return first[0] if len(first) == 1 else tuple(first), target
    raise DataError(f"{which} is not an (input, target) pair")


def _tree(value: Any, what: str, which: str) -> Tree:
    """A sample's input or target as tensors."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping):
        return {str(name): _tensor(each, what, which) for name, each in value.items()}
    if isinstance(value, tuple) and value:
        return tuple(_tensor(each, what, which) for each in value)
    return _tensor(value, what, which)


def _tensor(value: Any, what: str, which: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, np.ndarray | np.generic | float | int | list):
        raise DataError(
            f"{what} of the {which} data set has a {type(value).__name__}, not a tensor: give the data set a transform"
            " that makes one"
        )
    if isinstance(value, np.ndarray) and not value.flags.writeable:  # PyTorch knows no tensors that may only be read
        value = value.copy()
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{what} of the {which} data set has something else than numbers: {error}") from None


def _size(sample: Any) -> int:
    """The memory a sample takes, as far as tensors and arrays go."""
    if isinstance(sample, Tensor | np.ndarray):
        return sample.nbytes
    if isinstance(sample, int | float | str):
        return NUMBER_BYTES
    inner = sample.values() if isinstance(sample, Mapping) else sample if isinstance(sample, tuple | list) else ()
    return sum(map(_size, inner)) or NUMBER_BYTES


def _both(numbers: Sequence[int], values: Sequence[Any]) -> zip[tuple[int, Any]]:
    return zip(numbers, values, strict=True)
