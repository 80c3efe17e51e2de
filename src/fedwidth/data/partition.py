"""Ways to spread a data set over clients.

Every function works out an owner for each sample, so no sample is ever with two clients, and draws only from
(seed, "partition"). Test shares follow the training shares: the test samples of each class go to the clients that
have the class in training, by the same procedure.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedwidth.data.checks import check_partition
from fedwidth.data.dirichlet import dirichlet
from fedwidth.data.ownership import (
    NOBODY,
    assign_labels,
    assign_shards,
    check_enough,
    first_generator,
    holders,
    labels_of,
    partition_of,
    spread,
)
from fedwidth.data.records import Data
from fedwidth.data.shares import Partition, Shares
from fedwidth.data.validation import hold_out, in_the_whole, without
from fedwidth.errors import DataError, FedwidthError, OptionError, unknown, whole_number
from fedwidth.importing import find_function, what_failed


def iid(data: Data, clients: int, seed: int) -> Partition:
    """Every client gets equally many samples, drawn at random; sizes differ by at most one."""
    generator = first_generator(clients, seed)
    check_enough(data, clients)
    everybody = np.arange(clients)
    owners = [spread(generator, np.arange(len(split)), everybody) for split in (data.train, data.test)]
    return partition_of("iid", data, clients, owners)


def labels(data: Data, clients: int, seed: int, *, per_client: int = 2, published: bool = False) -> Partition:
    """Every client gets exactly `per_client` labels, and all data is used.

    With L labels each, N clients and C classes, each class is cut into L * N / C equal shards (where that is no whole
    number, classes differ by one shard), and each client gets L shards of different classes.

    `published=True` assigns as the published code does: shards are shuffled and handed out in that order, and where a
    client gets a label twice the second shard is dropped, so clients have fewer labels and part of the data is unused.
    """
    generator = first_generator(clients, seed)
    check_enough(data, clients)
    train, test = labels_of(data)
    _check_per_client(per_client, data.classes)
    shards = clients * per_client
    if shards < data.classes:
        raise DataError(
            f"{clients} clients with {per_client} labels each cannot hold {data.classes} classes:"
            f" clients times per_client must be at least {data.classes}"
        )
    if published:
        if shards % data.classes:
            raise DataError(
                f"published = true needs clients times per_client ({shards})"
                f" to be a multiple of the number of classes ({data.classes})"
            )
        drawn = generator.permutation(np.repeat(np.arange(data.classes), shards // data.classes))
        held = holders(drawn.reshape(clients, per_client), data.classes)
        pieces = [np.pad(who, (0, shards // data.classes - len(who)), constant_values=NOBODY) for who in held]
    else:
        pieces = holders(assign_labels(generator, clients, per_client, classes=data.classes), data.classes)
    owners = [assign_shards(generator, train, pieces), assign_shards(generator, test, pieces, thin=True)]
    return partition_of("labels", data, clients, owners)


def random_labels(data: Data, clients: int, seed: int, *, per_client: int = 2, holdout: float = 0.3) -> Partition:
    """Every client draws `per_client` different labels at random; each class is cut among the clients that drew it.

    A class nobody drew is unused. Each client then holds out a random share of its own samples to test on, so its test
    share numbers samples of the training set. This is the class split of the FedCover thesis (its Algorithms 1 to 3,
    70 % to train on and 30 % to test on).
    """
    generator = first_generator(clients, seed)
    check_enough(data, clients)
    train, _ = labels_of(data)
    _check_per_client(per_client, data.classes)
    if not isinstance(holdout, int | float) or not 0 <= holdout < 1:
        raise OptionError(f"holdout must lie between 0 and 1, not {holdout!r}")
    drawn = np.stack([generator.permutation(data.classes)[:per_client] for _ in range(clients)])
    owner = assign_shards(generator, train, holders(drawn, data.classes))
    test = np.full_like(owner, NOBODY)
    whole = Shares.of(owner, clients)
    for client in range(clients):
        shuffled = generator.permutation(whole[client].numpy())
        held_out = shuffled[: int(holdout * len(shuffled))]
        test[held_out], owner[held_out] = owner[held_out], NOBODY
    shares = Shares.of(owner, clients), Shares.of(test, clients)
    return Partition("random_labels", *shares, data.train.labels.cpu(), tested_on="train")


def natural(data: Data, clients: int | None = None, seed: int = 0, *, min_size: int = 1) -> Partition:
    """Every user of the training set is a client, or `clients` users drawn at random, with their own test samples.

    Users with fewer than `min_size` training samples are left out.
    """
    whole_number("min_size", min_size, least=1)
    if data.train.users is None:
        raise DataError(f"data set '{data.name}' does not say whose sample is whose: choose another partition")
    users, owner, sizes = np.unique(data.train.users.numpy(), return_inverse=True, return_counts=True)
    chosen = np.flatnonzero(sizes >= min_size)
    if clients is not None and clients != len(chosen):
        generator = first_generator(clients, seed)
        if clients > len(chosen):
            enough = f" with at least {min_size} samples" if min_size > 1 else ""
            raise DataError(f"{clients} clients asked for, but data set '{data.name}' has {len(chosen)} users{enough}")
        chosen = np.sort(chosen[generator.choice(len(chosen), clients, replace=False)])
    if not len(chosen):
        raise DataError(
            f"data set '{data.name}' has no user with at least {min_size} samples: they have {max(sizes)} at most"
        )
    if len(chosen) < len(users):
        number = np.full(len(users), NOBODY)
        number[chosen] = np.arange(len(chosen))
        users, owner = users[chosen], number[owner]
    test = np.full(len(data.test), NOBODY)
    if data.test.users is not None:
        whose = data.test.users.numpy()
        found = np.minimum(np.searchsorted(users, whose), len(users) - 1)
        test = np.where(users[found] == whose, found, NOBODY)
    return partition_of("natural", data, len(users), [owner, test])


PARTITIONS: dict[str, Callable[..., Partition]] = {
    "iid": iid,
    "labels": labels,
    "random_labels": random_labels,
    "dirichlet": dirichlet,
    "natural": natural,
}


ARGUMENTS = ("data", "clients", "seed")
"""The first arguments of every function that makes a partition; its options follow."""


def make_partition(
    data: Data,
    kind: str,
    clients: int | None = None,
    seed: int = 0,
    *,
    validation: float = 0.0,
    public: float = 0.0,
    **options: Any,
) -> Partition:
    """A partition by name, that of a function of your own included: `package.module:function`.

    It gets the data, the number of clients and the seed, and its options by name, and returns a `Partition`. Only
    `natural` may leave the number of clients open.

    `validation` and `public` are the shares of the training set that are held out first, for no client to train on: to
    choose settings by, and for the server.
    """
    allowed = partition_options(kind)
    for option in options:
        if option not in allowed:
            raise unknown(f"option of partition '{kind}'", option, allowed)
    for name, share in (("validation", validation), ("public", public)):
        if not isinstance(share, int | float) or not 0 <= share < 1:
            raise OptionError(f"{name} must be a share from 0 to below 1, not {share!r}")
    if validation + public >= 1:
        raise OptionError(f"validation and public hold out {validation + public:g} of the data: nothing is left")
    if not validation and not public:
        return _deal(kind, data, clients, seed, options)
    by_user, none = kind == "natural", torch.zeros(0, dtype=torch.long)
    held = hold_out(data, validation, seed, by_user=by_user) if validation else none
    rest, numbers = without(data, held)
    shown = none
    if public:
        own = hold_out(rest, public, seed, by_user=by_user, purpose="public", of=len(data.train))
        shown = numbers[own]
        rest, numbers = without(data, torch.cat([held, shown]))
    if kind not in PARTITIONS:  # one of the user's own may look at the samples
        rest = replace(data, train=data.train.take(numbers))
    return in_the_whole(_deal(kind, rest, clients, seed, options), data, numbers, held, shown)


def partition_options(kind: str) -> dict[str, Any]:
    """The options of a partition and their defaults.

    >>> partition_options("labels")
    {'per_client': 2, 'published': False}
    """
    parameters = list(inspect.signature(find_function("partition", kind, PARTITIONS)).parameters.values())
    return {each.name: each.default for each in parameters[len(ARGUMENTS) :]}


def _deal(kind: str, data: Data, clients: int | None, seed: int, options: Mapping[str, Any]) -> Partition:
    """The partition that a function makes; what one of the user's own does wrong is told in one line."""
    if kind in PARTITIONS:
        return PARTITIONS[kind](data, clients, seed, **options)
    try:
        found = find_function("partition", kind, PARTITIONS)(data, clients, seed, **options)
    except FedwidthError:
        raise
    except Exception as error:  # it may do anything
        raise DataError(f"partition '{kind}' could not be made: {what_failed(error)}") from error
    if not isinstance(found, Partition):
        raise DataError(f"partition '{kind}' must return a fedwidth.data.Partition, not a {type(found).__name__}")
    check_partition(found, data)
    if clients is not None and len(found) != clients:
        raise DataError(f"partition '{kind}' has {len(found)} clients, not the {clients} that were asked for")
    return found


def _check_per_client(per_client: int, classes: int) -> None:
    if type(per_client) is not int or per_client < 1:
        raise OptionError(f"per_client must be a whole number of at least 1, not {per_client!r}")
    if per_client > classes:
        raise DataError(
            f"{per_client} labels per client asked for (per_client; in a recipe data.partition_options.per_client), but"
            f" there are only {classes} classes"
        )
