"""Partitions whose class proportions are drawn from a Dirichlet distribution.

The smaller alpha, the more unequal. Without `equal`, each class is spread over the clients, so that clients differ in
size too, and with many clients and a small alpha some would have next to nothing: `small` says what becomes of them.
With `equal`, each client draws its own proportions of classes and all have equally many samples.
"""

from __future__ import annotations

import numpy as np

from fedwidth.data.ownership import (
    NOBODY,
    check_enough,
    first_generator,
    labels_of,
    partition_of,
    proportional,
    spread_sizes,
)
from fedwidth.data.records import Data
from fedwidth.data.shares import Partition
from fedwidth.errors import DataError, OptionError, unknown, whole_number

MAX_ALPHA = 1e100
"""The sum of what proportions are drawn from has to stay a number; long before, all of them are equal."""

MAX_DRAWS = 200
"""How often proportions are drawn again that leave a client with too little."""

SMALL = ("redraw", "fill", "drop")


def dirichlet(
    data: Data,
    clients: int,
    seed: int,
    *,
    alpha: float = 0.5,
    min_size: int = 1,
    small: str = "redraw",
    balanced: bool = False,
    equal: bool = False,
) -> Partition:
    """Each class is spread over the clients in proportions drawn from Dirichlet(alpha).

    Where a client would have fewer than `min_size` samples, `small="redraw"` draws all proportions again, up to 200
    times, as is usual (Li et al., 2022); "fill" gives it what it lacks, of the class it drew most of, from the client
    with the most samples of that class; "drop" leaves it out, so that there are fewer clients than asked for, and its
    samples are nobody's.

    With `balanced`, a client that has its equal share of all samples is given no more of the classes that follow, as in
    the code of Li et al. (NIID-Bench).

    With `equal`, each client draws its proportions of classes from Dirichlet(alpha), and samples by them until all have
    equally many; a class that is used up is left out of the proportions (Hsu et al., 2019).
    """
    generator = first_generator(clients, seed)
    check_enough(data, clients)
    _check_options(alpha, min_size, small, balanced, equal)
    train, test = labels_of(data)
    counts = np.bincount(train, minlength=data.classes)
    if equal:
        sizes = _equal_sizes(generator, counts, clients, alpha)
    elif small == "redraw":
        sizes = _redrawn(generator, counts, clients, alpha, min_size, balanced)
    else:
        shares, sizes = _draw(generator, counts, clients, alpha, balanced)
        if small == "fill":
            fill(sizes, shares, min_size)
    kept = np.flatnonzero(sizes.sum(axis=0) >= min_size)
    if not len(kept):
        raise DataError(f"no client would have {min_size} samples: take a smaller min_size")
    number = np.full(clients, NOBODY)
    number[kept] = np.arange(len(kept))
    owners = [_owners(generator, targets, sizes, number) for targets in (train, test)]
    return partition_of("dirichlet", data, len(kept), owners)


def _check_options(alpha: float, min_size: int, small: str, balanced: bool, equal: bool) -> None:
    if not isinstance(alpha, int | float) or not 0 < alpha <= MAX_ALPHA:
        raise OptionError(f"alpha must be a positive number of at most {MAX_ALPHA:g}, not {alpha!r}")
    whole_number("min_size", min_size, least=1)
    if small not in SMALL:
        raise unknown("way with small clients", small, SMALL)
    for name, value in (("balanced", balanced), ("equal", equal)):
        if type(value) is not bool:
            raise OptionError(f"{name} must be true or false, not {value!r}")
    if equal and (min_size != 1 or small != "redraw" or balanced):
        raise OptionError("with equal = true no client is small: leave out min_size, small and balanced")


def _draw(
    generator: np.random.Generator, counts: np.ndarray, clients: int, alpha: float, balanced: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Proportions of each class over the clients, and how many samples they are: both [classes, clients]."""
    shares = generator.dirichlet(np.full(clients, alpha), size=len(counts))
    sizes = np.zeros(shares.shape, dtype=np.int64)
    for label, count in enumerate(counts):
        if balanced:
            left = shares[label] * (sizes.sum(axis=0) < counts.sum() / clients)
            shares[label] = left / left.sum() if left.sum() else shares[label]
        sizes[label] = proportional(count, shares[label])
    return shares, sizes


def _redrawn(
    generator: np.random.Generator, counts: np.ndarray, clients: int, alpha: float, min_size: int, balanced: bool
) -> np.ndarray:
    """The sizes of the first draw in which every client has enough."""
    for _ in range(MAX_DRAWS):
        _, sizes = _draw(generator, counts, clients, alpha, balanced)
        if (sizes.sum(axis=0) >= min_size).all():
            return sizes
    enough = "without data" if min_size == 1 else f"with fewer than {min_size} samples"
    raise DataError(
        f"Dirichlet({alpha}) left a client {enough} in {MAX_DRAWS} draws over {clients} clients: take a larger alpha or"
        ' fewer clients, or say what becomes of small ones: small = "fill" or "drop", or equal = true'
    )


def fill(sizes: np.ndarray, shares: np.ndarray, min_size: int) -> None:
    """Move samples, in place, until every client has `min_size`.

    A client that lacks some takes one at a time, of the class it drew the largest proportion of that others can spare,
    from the client with the most samples of that class. Nobody gives away what it needs itself.
    """
    total = sizes.sum(axis=0)
    if total.sum() < min_size * len(total):
        raise DataError(f"{total.sum()} samples are too few for {len(total)} clients with at least {min_size} each")
    for client in np.flatnonzero(total < min_size):
        wanted = np.argsort(-shares[:, client], kind="stable")
        while total[client] < min_size:
            spare = np.where(total > min_size, sizes, 0)
            label = next(label for label in wanted if spare[label].any())
            giver = spare[label].argmax()
            sizes[label, [giver, client]] += [-1, 1]
            total[[giver, client]] += [-1, 1]


def _equal_sizes(generator: np.random.Generator, counts: np.ndarray, clients: int, alpha: float) -> np.ndarray:
    """Samples of each class and client [classes, clients], equally many for each client, all of them used."""
    left = counts.copy()
    rows = []
    for size in spread_sizes(int(counts.sum()), clients):
        own = np.zeros_like(counts)
        share = generator.dirichlet(np.full(len(counts), alpha))
        while lacking := size - int(own.sum()):
            possible = np.where(left > 0, share, 0.0)
            if not possible.sum():  # all that it wants is used up: it takes what there is
                possible = left.astype(float)
            drawn = np.minimum(generator.multinomial(lacking, possible / possible.sum()), left)
            own += drawn
            left -= drawn
        rows.append(own)
    return generator.permutation(np.stack(rows)).T  # the last ones got what was left over: no client number is special


def _owners(generator: np.random.Generator, targets: np.ndarray, sizes: np.ndarray, number: np.ndarray) -> np.ndarray:
    """The owner of each sample, drawn so that classes are spread in proportion to these sizes."""
    owner = np.full(len(targets), NOBODY)
    for label, size in enumerate(sizes):
        samples = generator.permutation(np.flatnonzero(targets == label))
        if size.sum():
            owner[samples] = np.repeat(number, proportional(len(samples), size / size.sum()))
    return owner
