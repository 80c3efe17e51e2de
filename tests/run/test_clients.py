"""What clients.json says of each client."""

import numpy as np
import torch

from fedwidth.data.shares import Partition, Shares
from fedwidth.run.clients import describe_clients


def partition(owner, targets):
    shares = Shares.of(np.array(owner), clients=max(owner) + 1)
    return Partition("by hand", shares, shares, torch.tensor(targets))


def described(split):
    return describe_clients(split, [1.0] * len(split), [0.5] * len(split))


def test_samples_of_each_label_are_counted():
    split = partition([0, 0, 0, 1, 0, 1], [3, 0, 3, 2, 3, 2])
    first, second = described(split)
    assert (first["samples"], first["labels"], first["counts"]) == (4, [0, 3], [1, 3])
    assert (second["samples"], second["labels"], second["counts"]) == (2, [2], [2])


def test_samples_without_a_label_are_not_counted():
    (row,) = described(partition([0, 0, 0], [1, -100, 1]))
    assert (row["samples"], row["labels"], row["counts"]) == (3, [1], [2])


def test_sequences_have_labels_but_no_counts():
    (row,) = described(partition([0, 0], [[1, 2], [2, -100]]))
    assert row["labels"] == [1, 2]
    assert "counts" not in row


def test_nothing_is_counted_where_the_file_would_be_large():
    """Two clients: with 50,000 labels there are 100,000 counts, which is as many as there may be."""
    assert all("counts" in row for row in described(partition([0, 1], [2, 49_999])))
    assert not any("counts" in row for row in described(partition([0, 1], [2, 50_000])))
