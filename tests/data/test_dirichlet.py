"""What becomes of clients that a Dirichlet distribution leaves with little, and clients of equal size."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from data_fixtures import labelled
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwidth.data import Data, Partition, make_partition
from fedwidth.data.dirichlet import fill
from fedwidth.errors import DataError, OptionError

CIFAR_SHAPED = labelled([label for label in range(10) for _ in range(5000)], [k % 10 for k in range(10_000)])


def check(data: Data, partition: Partition) -> None:
    """No sample is with two clients, and a client is tested on the labels it has."""
    for shares, split in ((partition.train, data.train), (partition.test, data.test)):
        assert len(shares.samples.unique()) == len(shares.samples) <= len(split)
    for client in range(0, len(partition), 50):
        assert set(data.test.targets[partition.test[client]].tolist()) <= set(partition.labels[client].tolist())


def test_a_thousand_clients_at_a_tenth() -> None:
    """Redrawing never ends well; each other way gives a partition."""
    with pytest.raises(DataError, match='without data in 200 draws over 1000 .* small = "fill" or "drop", or equal'):
        make_partition(CIFAR_SHAPED, "dirichlet", 1000, 1, alpha=0.1)
    filled = make_partition(CIFAR_SHAPED, "dirichlet", 1000, 1, alpha=0.1, small="fill", min_size=10)
    assert (len(filled), int(filled.sizes.min()), filled.used) == (1000, 10, 1.0)
    dropped = make_partition(CIFAR_SHAPED, "dirichlet", 1000, 1, alpha=0.1, small="drop")
    assert 900 < len(dropped) < 1000
    assert (int(dropped.sizes.min()), dropped.used) == (1, 1.0), "only those without any are dropped"
    equal = make_partition(CIFAR_SHAPED, "dirichlet", 1000, 1, alpha=0.1, equal=True)
    assert equal.sizes.tolist() == [50] * 1000
    for partition in (filled, dropped, equal):
        check(CIFAR_SHAPED, partition)
        assert np.mean([len(partition.labels[client]) for client in range(0, 900, 20)]) < 4, "still few labels each"


def test_a_client_with_its_share_gets_no_more_where_clients_are_balanced() -> None:
    """As in NIID-Bench's code: nobody has more than its equal share and the one class that took it there."""
    plain, balanced = (
        make_partition(CIFAR_SHAPED, "dirichlet", 10, 3, alpha=0.5, min_size=10, balanced=each)
        for each in (False, True)
    )
    for partition in (plain, balanced):
        check(CIFAR_SHAPED, partition)
        assert partition.used == 1.0
    held = [torch.bincount(CIFAR_SHAPED.train.targets[balanced[client]], minlength=10) for client in range(10)]
    for counts in held:
        before = counts.cumsum(0) - counts
        assert not counts[before >= 5000].any()
    assert balanced.sizes.double().std() < plain.sizes.double().std()


def test_filling_by_hand() -> None:
    """Clients 0 and 2 lack two and one; only client 1 has more than two, five of class 0 and two of class 1.

    Client 0 drew most of class 1, and takes the two there are. Client 2 drew most of class 1 too, but nobody can spare
    any now: it takes one of class 0.
    """
    sizes = np.array([[0, 5, 0], [0, 2, 1]])
    fill(sizes, np.array([[0.1, 0.9, 0.0], [0.4, 0.4, 0.2]]), 2)
    assert sizes.tolist() == [[0, 4, 1], [2, 0, 1]]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 20), st.integers(1, 10), st.sampled_from([0.01, 0.1, 1.0]), st.integers(0, 9))
def test_filled_clients_have_enough_and_nothing_is_lost(clients: int, least: int, alpha: float, seed: int) -> None:
    data = labelled([k % 4 for k in range(200)], [k % 4 for k in range(41)])
    partition = make_partition(data, "dirichlet", clients, seed, alpha=alpha, small="fill", min_size=least)
    check(data, partition)
    assert len(partition) == clients
    assert int(partition.sizes.min()) >= least
    assert sorted(partition.train.samples.tolist()) == list(range(200))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 20), st.sampled_from([1, 5]), st.integers(0, 9))
def test_dropped_clients_leave_the_others_as_they_were(clients: int, least: int, seed: int) -> None:
    data = labelled([k % 4 for k in range(200)])
    every = make_partition(data, "dirichlet", clients, seed, alpha=0.1, small="drop")
    partition = make_partition(data, "dirichlet", clients, seed, alpha=0.1, small="drop", min_size=least)
    kept = [share.tolist() for share in every if len(share) >= least]
    assert [share.tolist() for share in partition] == kept
    assert every.used == 1.0
    assert partition.used == sum(map(len, kept)) / 200


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 30), st.sampled_from([1e-3, 0.1, 10.0]), st.integers(0, 9))
def test_equal_sizes(clients: int, alpha: float, seed: int) -> None:
    data = labelled([k % 4 for k in range(203)], [k % 4 for k in range(41)])
    partition = make_partition(data, "dirichlet", clients, seed, alpha=alpha, equal=True)
    check(data, partition)
    assert sorted(partition.train.samples.tolist()) == list(range(203)), "all data is used"
    assert int(partition.sizes.max() - partition.sizes.min()) <= 1


def test_equal_clients_are_as_unequal_as_drawn() -> None:
    """Proportions q of C classes have variance (1/C)(1 - 1/C) / (C alpha + 1); n samples drawn by them E[q(1 - q)] / n
    more, where E[q(1 - q)] = (1/C)(1 - 1/C) C alpha / (C alpha + 1). The last clients take what is left over: they are
    up to 20 % further apart.
    """
    data = labelled([label for label in range(10) for _ in range(20_000)], [0])
    for alpha in (0.1, 1.0, 10.0):
        counts = []
        for seed in range(4):
            partition = make_partition(data, "dirichlet", 1000, seed, alpha=alpha, equal=True)
            labels = data.train.targets[partition.train.samples].view(1000, 200)
            counts.append(torch.stack([(labels == label).sum(1) for label in range(10)], dim=1) / 200)
        spread = 0.09 / (10 * alpha + 1)
        expected = spread + 0.09 * 10 * alpha / (10 * alpha + 1) / 200
        assert float(torch.cat(counts).var()) == pytest.approx(expected, rel=0.2)


def test_enough_samples_by_drawing_again() -> None:
    data = labelled([k % 4 for k in range(200)])
    partition = make_partition(data, "dirichlet", 10, 0, alpha=1.0, min_size=5)
    assert int(partition.sizes.min()) >= 5
    assert len(partition.train.samples) == 200


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"small": "keep"}, OptionError, "unknown way with small clients 'keep'.*redraw, fill, drop"),
        ({"min_size": 0}, OptionError, "min_size must be a whole number from 1 on, not 0"),
        ({"equal": 1}, OptionError, "equal must be true or false"),
        ({"balanced": "yes"}, OptionError, "balanced must be true or false"),
        ({"equal": True, "small": "fill"}, OptionError, "leave out min_size, small and balanced"),
        ({"small": "fill", "min_size": 60}, DataError, "200 samples are too few for 4 clients with at least 60 each"),
        ({"small": "drop", "min_size": 300}, DataError, "no client would have 300 samples"),
        ({"min_size": 51}, DataError, "with fewer than 51 samples in 200 draws"),
    ],
)
def test_what_cannot_be(options: dict[str, object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make_partition(labelled([k % 4 for k in range(200)]), "dirichlet", 4, 0, **options)
