"""Validation samples: how many of what they are, and that the rest is dealt as it would be without them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from data_fixtures import labelled
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwidth.data import Data, from_tensors, make_partition
from fedwidth.data.validation import hold_out
from fedwidth.errors import DataError, OptionError

TEN_CLASSES = labelled([label for label in range(10) for _ in range(100)], [k % 10 for k in range(200)])

KINDS = {
    "iid": {},
    "labels": {"per_client": 2},
    "random_labels": {"per_client": 4},
    "dirichlet": {"alpha": 1.0},
}


def of_users(sizes: list[int]) -> Data:
    owners = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    x, y = torch.zeros(len(owners), 1), torch.zeros(len(owners), dtype=torch.long)
    return from_tensors(x, y, x, y, classes=2, train_users=owners, test_users=owners)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.sampled_from([0.05, 0.1, 0.3, 0.9]), st.integers(0, 9))
def test_every_class_gives_its_share_and_never_its_last_sample(counts: list[int], share: float, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(sum(counts))
    labels = np.repeat(np.arange(len(counts)), counts)[order]
    data = labelled(labels.tolist(), [0])
    try:
        held = hold_out(data, share, seed)
    except DataError:
        assert all(share * count < 1 or count == 1 for count in counts)
        return
    assert held.tolist() == sorted(set(held.tolist()))
    found = np.bincount(labels[held.numpy()], minlength=len(counts))
    for got, count in zip(found, counts, strict=True):
        assert got < count
        assert abs(got - share * count) <= 1.5 or got == count - 1


def test_by_hand() -> None:
    held = hold_out(TEN_CLASSES, 0.2, 1)
    assert torch.bincount(TEN_CLASSES.train.targets[held]).tolist() == [20] * 10
    assert torch.equal(held, hold_out(TEN_CLASSES, 0.2, 1))
    assert not torch.equal(held, hold_out(TEN_CLASSES, 0.2, 2))


def test_sequences_have_no_one_label_and_are_drawn_from_all() -> None:
    words = torch.zeros(50, 4, dtype=torch.long)
    data = from_tensors(words, words, words, words, classes=3, kind="tokens")
    assert len(hold_out(data, 0.1, 1)) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_trains_on_them_or_is_tested_with_them(kind: str) -> None:
    partition = make_partition(TEN_CLASSES, kind, 20, 3, validation=0.2, **KINDS[kind])
    held = set(partition.validation.tolist())
    assert len(held) == 200
    assert not held & set(partition.train.samples.tolist())
    assert set(partition.trained_on.tolist()) == set(range(1000)) - held
    if partition.tested_on == "train":
        assert not held & set(partition.test.samples.tolist())
    else:
        whole = make_partition(TEN_CLASSES, kind, 20, 3, **KINDS[kind])
        assert partition.test.sizes.sum() == whole.test.sizes.sum() == 200


@pytest.mark.parametrize("kind", KINDS)
def test_clients_hold_the_same_kinds_of_data_as_without(kind: str) -> None:
    """Ten classes of 100 at 0.2: every class has 80 left, so every share of a class is four fifths of what it was."""
    whole = make_partition(TEN_CLASSES, kind, 20, 3, **KINDS[kind])
    partition = make_partition(TEN_CLASSES, kind, 20, 3, validation=0.2, **KINDS[kind])

    def counts(split):
        of = [torch.bincount(TEN_CLASSES.train.targets[split[client]], minlength=10) for client in range(20)]
        return torch.stack(of)

    if kind == "iid":
        assert partition.sizes.tolist() == [40] * 20
        return
    if kind in ("labels", "dirichlet"):  # proportions are cut at whole numbers, twice
        assert (counts(partition) - 0.8 * counts(whole)).abs().max() <= 2
    if kind != "dirichlet":
        for client in range(20):
            assert partition.labels[client].tolist() == whole.labels[client].tolist()


def test_users_keep_most_of_their_data_and_stay_the_same_users() -> None:
    data = of_users([1, 2, 3, 5, 10, 10, 20, 50, 99, 100])
    whole = make_partition(data, "natural")
    partition = make_partition(data, "natural", validation=0.1)
    assert len(partition) == len(whole) == 10
    assert len(partition.validation) == 30
    for client in range(10):
        held = len(whole[client]) - len(partition[client])
        assert abs(held - 0.1 * len(whole[client])) <= 1
        assert len(partition[client]) >= 1
        assert set(partition[client].tolist()) <= set(whole[client].tolist())
    some, fewer = (make_partition(data, "natural", 4, 7, validation=share) for share in (0.0, 0.1))
    assert all(set(fewer[client].tolist()) <= set(some[client].tolist()) for client in range(4))


def test_a_share_of_nothing_changes_nothing() -> None:
    one, other = (make_partition(TEN_CLASSES, "labels", 20, 3, **more) for more in ({}, {"validation": 0.0}))
    assert torch.equal(one.train.samples, other.train.samples)
    assert len(other.validation) == 0
    assert torch.equal(other.trained_on, torch.arange(1000))


def test_refused() -> None:
    with pytest.raises(DataError, match=r"data.validation = 0.0001 of 1000 training samples holds none out"):
        make_partition(TEN_CLASSES, "iid", 20, 3, validation=0.0001)
    for share in (1, -0.1, "half"):
        with pytest.raises(OptionError, match="validation must be a share from 0 to below 1"):
            make_partition(TEN_CLASSES, "iid", 20, 3, validation=share)
