"""Who has which samples: the record a partition is.

Shares     client -> sample numbers, as one flat list cut at offsets: 342,477 clients are two tensors, not 342,477
Partition  the shares of the training set, the matching test shares, and which labels each client has
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedwidth.data.records import IGNORE, Data, Split
from fedwidth.errors import DataError, whole_number

MAX_KNOWN = 2_000
"""The number of clients whose labels are remembered."""


@dataclass(frozen=True, eq=False)
class Shares:
    """Client i has `samples[offsets[i] : offsets[i + 1]]`; no sample is in two shares.

    >>> shares = Shares.of(np.array([1, 0, -1, 1]), clients=2)
    >>> [share.tolist() for share in shares], shares.sizes.tolist()
    ([[1], [0, 3]], [1, 2])
    """

    samples: Tensor
    offsets: Tensor
    owners: int | None = None
    """How many samples there were to share, those that nobody has included; None where that is not known."""

    @classmethod
    def of(cls, owner: np.ndarray | Tensor | Sequence[int], clients: int) -> Shares:
        """The shares in which sample i is with client `owner[i]`, or with nobody where that is negative."""
        owner, clients = _whole(owner), whole_number("clients", clients, least=1)
        if len(owner) and owner.max() >= clients:
            raise DataError(
                f"sample {owner.argmax()} is with client {owner.max()}, but {clients} clients are numbered from 0 to"
                f" {clients - 1} (a negative number is nobody)"
            )
        counts = np.bincount(owner[owner >= 0], minlength=clients)
        order = np.argsort(owner, kind="stable")[len(owner) - int(counts.sum()) :]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        return cls(torch.from_numpy(order.astype(np.int64)), torch.from_numpy(offsets.astype(np.int64)), len(owner))

    def __repr__(self) -> str:
        """In one line: its tensors are not for reading."""
        return f"Shares({len(self.samples)} samples, {len(self)} clients)"

    def __len__(self) -> int:
        return int(self.offsets.shape[0]) - 1

    def __getitem__(self, client: int) -> Tensor:
        bounds = self.offsets.numpy()  # asked several times for every client of a round, so what is fastest
        if not 0 <= client < len(bounds) - 1:
            raise IndexError(f"client {client} of {len(self)}")
        return self.samples[bounds[client] : bounds[client + 1]]

    def size(self, client: int) -> int:
        """The number of samples that one client has."""
        bounds = self.offsets.numpy()
        return int(bounds[client + 1] - bounds[client])

    @property
    def sizes(self) -> Tensor:
        """The number of samples that each client has."""
        return self.offsets.diff()


def _whole(owner: Any) -> np.ndarray:
    """The owner of each sample as an array of whole numbers; what cannot be one is refused."""
    try:
        found = np.asarray(owner.detach().cpu() if isinstance(owner, Tensor) else owner)
    except (TypeError, ValueError):  # lists of different lengths
        found = np.empty((), object)
    if found.ndim != 1 or (found.dtype.kind not in "iu" and len(found)):
        shape = f" of shape {list(found.shape)} and type {found.dtype}" if found.dtype != object else ""
        raise DataError(
            "owners must be whole numbers, one client for each sample, as an array, a tensor or a list, not a"
            f" {type(owner).__name__}{shape}"
        )
    return found.astype(np.int64, copy=False)


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels each client has in training: `labels[i]` is a sorted LongTensor, worked out when asked for."""

    shares: Shares
    targets: Any = field(repr=False)
    _known: dict[int, Tensor] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.shares)

    def __getitem__(self, client: int) -> Tensor:
        if client not in self._known:
            if len(self._known) >= MAX_KNOWN:  # memory must not grow with the number of clients met
                self._known.clear()
            found: Tensor = torch.unique(self.targets[self.shares[client]])
            self._known[client] = found[found != IGNORE].long()
        return self._known[client]


@dataclass(frozen=True, eq=False)
class Partition:
    """Samples by client: `partition[i]` for training, `partition.test[i]` for testing, `partition.labels[i]`.

    Test shares number samples of the test set; with `tested_on="train"` they are samples of the training set that the
    client held out. `partition.test_split(data)` is the split they belong to. A client may have no test samples.
    """

    name: str
    train: Shares
    test: Shares
    targets: Any = field(repr=False)
    """The labels of the training samples (`data.train.labels`); targets that are no labels count as none, [N, 0]."""
    tested_on: Literal["train", "test"] = "test"
    validation: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long), repr=False)
    """Training samples that no client has, held out to choose settings by."""
    public: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long), repr=False)
    """Training samples that no client has, which the server holds without their labels."""

    def __post_init__(self) -> None:
        for which, shares in (("train", self.train), ("test", self.test)):
            if not isinstance(shares, Shares):
                raise DataError(
                    f"{which} of a partition must be Shares, as Shares.of(owner, clients) makes them, not a"
                    f" {type(shares).__name__}"
                )
        if len(self.train) != len(self.test):
            raise DataError(
                f"the training samples of a partition are with {len(self.train)} clients and the test samples with"
                f" {len(self.test)}: they must be the same clients"
            )
        if isinstance(self.targets, list | np.ndarray):
            object.__setattr__(self, "targets", torch.as_tensor(self.targets))
        if isinstance(self.targets, Tensor) and (self.targets.is_floating_point() or self.targets.dtype == torch.bool):
            object.__setattr__(self, "targets", torch.empty(len(self.targets), 0, dtype=torch.long))
        empty = torch.nonzero(self.train.sizes == 0)
        if len(empty):
            raise DataError(f"client {int(empty[0])} would have no data ({len(empty)} of {len(self.train)} clients)")

    def __len__(self) -> int:
        return len(self.train)

    def __getitem__(self, client: int) -> Tensor:
        return self.train[client]

    def size(self, client: int) -> int:
        """The number of training samples that one client has."""
        return self.train.size(client)

    @property
    def sizes(self) -> Tensor:
        """The number of training samples that each client has."""
        return self.train.sizes

    @cached_property
    def labels(self) -> Labels:
        """The labels each client has in training."""
        return Labels(self.train, self.targets)

    @property
    def used(self) -> float:
        """The share of the training set that clients have, that is for validation or that the server holds."""
        held_out = len(self.test.samples) if self.tested_on == "train" else 0
        return (len(self.train.samples) + held_out + len(self.validation) + len(self.public)) / len(self.targets)

    @cached_property
    def trained_on(self) -> Tensor:
        """The numbers of the training samples that are neither for validation nor the server's."""
        left = torch.ones(len(self.targets), dtype=torch.bool)
        left[self.validation] = left[self.public] = False
        return torch.nonzero(left).flatten()

    def test_split(self, data: Data) -> Split:
        """The split whose samples the test shares number."""
        return data.train if self.tested_on == "train" else data.test
