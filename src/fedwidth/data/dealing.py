"""Dealing labels to clients and samples to owners: what the partitions are made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedwidth.errors import DataError

NOBODY = -1


def deal_labels(generator: np.random.Generator, clients: int, per_client: int, *, classes: int) -> np.ndarray:
    """[clients, per_client] different labels a client, each class as often as the others (give or take one).

    Client by client, drawn in proportion to what is left of each class. A class with as many shards left as there are
    clients must be taken now; as no class ever has more, the deal never gets stuck.
    """
    shards, extra = divmod(clients * per_client, classes)
    left = np.full(classes, shards)
    left[generator.permutation(classes)[:extra]] += 1
    dealt = np.empty((clients, per_client), np.int64)
    for client in range(clients):
        forced = np.flatnonzero(left == clients - client)
        weight = np.where(left == clients - client, 0, left)
        free = per_client - len(forced)
        dealt[client, : len(forced)] = forced
        if free:
            dealt[client, len(forced) :] = generator.choice(classes, free, replace=False, p=weight / weight.sum())
        left[dealt[client]] -= 1
    return generator.permutation(dealt)  # the forced draws pile up at the end: no client number is special


def holders(dealt: np.ndarray, classes: int) -> list[np.ndarray]:
    """For each class, the clients whose row names it."""
    return [np.flatnonzero((dealt == label).any(axis=1)) for label in range(classes)]


def deal_shards(
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
    """The owner of each of these samples: dealt out evenly and at random, what is left over to the first of `who`."""
    each, extra = divmod(len(samples), len(who))
    owners = np.repeat(who, each + (np.arange(len(who)) < extra))
    return generator.permutation(owners)


def proportional(samples: int, shares: np.ndarray) -> np.ndarray:
    """Whole numbers in these proportions that add up to `samples`; a share of zero stays zero."""
    edges = np.rint(np.cumsum(shares) * samples).astype(np.int64)
    edges[np.flatnonzero(shares)[-1] :] = samples
    return np.diff(np.minimum(edges, samples), prepend=0)
