"""Which client owns which labels and samples: the steps that partitions are made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from fedwidth.data.records import Data
from fedwidth.data.shares import Partition, Shares
from fedwidth.errors import DataError, OptionError
from fedwidth.randomness import numpy_generator

NOBODY = -1
"""The owner of a sample that no client has."""


def assign_labels(generator: np.random.Generator, clients: int, per_client: int, *, classes: int) -> np.ndarray:
    """The labels of each client [clients, per_client]: all different, and each class (nearly) as often as any other.

    Labels are drawn client by client, in proportion to what is left of each class. A class with as many shards left as
    there are clients left must be taken now; as no class ever has more, this never gets stuck.
    """
    shards, extra = divmod(clients * per_client, classes)
    left = np.full(classes, shards)
    left[generator.permutation(classes)[:extra]] += 1
    assigned = np.empty((clients, per_client), np.int64)
    for client in range(clients):
        forced = np.flatnonzero(left == clients - client)
        weight = np.where(left == clients - client, 0, left)
        free = per_client - len(forced)
        assigned[client, : len(forced)] = forced
        if free:
            assigned[client, len(forced) :] = generator.choice(classes, free, replace=False, p=weight / weight.sum())
        left[assigned[client]] -= 1
    return generator.permutation(assigned)  # the forced draws pile up at the end: no client number is special


def holders(assigned: np.ndarray, classes: int) -> list[np.ndarray]:
    """The clients that hold each class, given the labels of each client."""
    return [np.flatnonzero((assigned == label).any(axis=1)) for label in range(classes)]


def assign_shards(
    generator: np.random.Generator, targets: np.ndarray, pieces: Sequence[np.ndarray], *, thin: bool = False
) -> np.ndarray:
    """The owner of each sample: class c is cut into one shard for each entry of `pieces[c]`.

    A class must have a sample for each shard; `thin` allows less (a client without test samples of one of its labels).
    """
    owner = np.full(len(targets), NOBODY)
    for label, who in enumerate(pieces):
        samples = np.flatnonzero(targets == label)
        if len(samples) < len(who) and not thin:
            raise DataError(f"class {label} has {len(samples)} samples for {len(who)} clients that would hold it")
        if len(who):
            owner[samples] = spread(generator, samples, generator.permutation(who))
    return owner


def spread(generator: np.random.Generator, samples: np.ndarray, who: np.ndarray) -> np.ndarray:
    """The owner of each of these samples, drawn so that all of `who` get as many; the first of them get the rest."""
    return generator.permutation(np.repeat(who, spread_sizes(len(samples), len(who))))


def spread_sizes(samples: int, clients: int) -> np.ndarray:
    """So many samples over so many clients: sizes that differ by at most one, larger ones first."""
    each, extra = divmod(samples, clients)
    return each + (np.arange(clients) < extra)


def proportional(samples: int, shares: np.ndarray) -> np.ndarray:
    """Whole numbers in these proportions that add up to `samples`; a share of zero stays zero."""
    edges = np.rint(np.cumsum(shares) * samples).astype(np.int64)
    edges[np.flatnonzero(shares)[-1] :] = samples
    return np.diff(np.minimum(edges, samples), prepend=0)


def first_generator(clients: int, seed: int) -> np.random.Generator:
    """What a partition over so many clients draws from."""
    if type(clients) is not int or clients < 1:
        raise OptionError(f"clients must be a whole number of at least 1, not {clients!r}")
    if type(seed) is not int or seed < 0:
        raise OptionError(f"seed must be a whole number of at least 0, not {seed!r}")
    return numpy_generator(seed, "partition")


def check_enough(data: Data, clients: int) -> None:
    """Refuse more clients than there are training samples."""
    if clients > len(data.train):
        raise DataError(f"{clients} clients but only {len(data.train)} training samples: some would have no data")


WITHOUT_LABELS = "choose the partition iid, natural or one of your own, package.module:function"
"""What to do where samples have no label to go by."""


def labels_of(data: Data) -> tuple[np.ndarray, np.ndarray]:
    """The one label of each training and each test sample; data without is refused."""

    def one(targets: Tensor) -> np.ndarray:
        if targets.dim() != 1:
            raise DataError(f"data set '{data.name}' has no one label a sample: {WITHOUT_LABELS}")
        if int(targets.min()) < 0:
            raise DataError(f"data set '{data.name}' has samples without a label: {WITHOUT_LABELS}")
        return targets.cpu().numpy()

    return one(data.train.labels), one(data.test.labels)


def partition_of(name: str, data: Data, clients: int, owners: Sequence[np.ndarray]) -> Partition:
    """The partition in which these own the training samples and the test samples."""
    train, test = (Shares.of(owner, clients) for owner in owners)
    return Partition(name, train, test, data.train.labels.cpu())
