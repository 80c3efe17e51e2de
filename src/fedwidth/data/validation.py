"""Samples of the training set that no client trains on: to choose settings and rounds by without the test set, or for
the server, without their labels.

They are taken first, and the rest is shared out among the clients as a training set of that size would be. The labels a
client draws, its proportions and, of natural partitions, the users are drawn as without validation samples: the same
clients hold the same kinds of data, each about `share` less of it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedwidth.data.ownership import proportional
from fedwidth.data.reading import Column
from fedwidth.data.records import Data, Split
from fedwidth.data.shares import Partition, Shares
from fedwidth.errors import DataError
from fedwidth.randomness import numpy_generator


def hold_out(
    data: Data, share: float, seed: int, *, by_user: bool = False, purpose: str = "validation", of: int = 0
) -> Tensor:
    """The numbers of so large a share of the training samples, in rising order, drawn from the seed.

    `of` is what it is a share of, where that is more than there is in the data.

    Every class gives its share of them where a sample has one label, or every user with `by_user`, as nearly as whole
    numbers allow; none gives its last sample.
    """
    generator = numpy_generator(seed, purpose)
    wanted = round(share * (of or len(data.train)))
    _, strata, counts = np.unique(_strata(data, by_user), return_inverse=True, return_counts=True)
    order = generator.permutation(len(counts))  # the rounding favours no label and no user
    sizes = np.empty_like(counts)
    sizes[order] = proportional(wanted, counts[order] / counts.sum())
    sizes = np.minimum(sizes, counts - 1)
    if not sizes.sum():
        raise DataError(
            f"data.{purpose} = {share:g} of {len(data.train)} training samples holds none out: take a larger share"
        )
    shuffled = generator.permutation(len(strata))
    grouped = shuffled[np.argsort(strata[shuffled], kind="stable")]
    rank = np.arange(len(grouped)) - np.repeat(np.cumsum(counts) - counts, counts)
    return torch.from_numpy(np.sort(grouped[rank < np.repeat(sizes, counts)]))


def without(data: Data, held: Tensor) -> tuple[Data, Tensor]:
    """The data without the samples held out, and the numbers of its training samples in the whole training set.

    In place of inputs, which no partition looks at, it has these numbers.
    """
    left = torch.ones(len(data.train), dtype=torch.bool)
    left[held] = False
    numbers = torch.nonzero(left).flatten()
    users = None if data.train.users is None else data.train.users[numbers]
    labels = data.train.labels
    left_labels = labels.take(numbers) if isinstance(labels, Column) else labels.cpu()[numbers]
    return replace(data, train=Split(numbers, left_labels, users)), numbers


def in_the_whole(partition: Partition, data: Data, numbers: Tensor, validation: Tensor, public: Tensor) -> Partition:
    """A partition of what was left, numbering the samples as the whole training set does."""

    def renumber(shares: Shares) -> Shares:
        return Shares(numbers[shares.samples], shares.offsets)

    return replace(
        partition,
        train=renumber(partition.train),
        test=renumber(partition.test) if partition.tested_on == "train" else partition.test,
        targets=data.train.labels.cpu(),
        validation=validation,
        public=public,
    )


def _strata(data: Data, by_user: bool) -> np.ndarray:
    """The group of each training sample that gives its share: its user, its label, or one group for all."""
    if by_user and data.train.users is not None:
        return data.train.users.numpy()
    labels = data.train.labels
    return labels.cpu().numpy() if labels.dim() == 1 else np.zeros(len(labels), np.int64)
