from __future__ import annotations

import torch
from data_fixtures import labelled

from fedwidth.data import Partition, Shares, load, make_partition, partition_picture
from fedwidth.data.picture import labels_per_client

DATA = labelled([0, 0, 0, 0, 1, 1, 2, 2])


def test_by_hand() -> None:
    train = Shares(torch.tensor([0, 1, 2, 3, 4, 5, 6]), torch.tensor([0, 5, 7]))
    test = Shares(torch.tensor([0, 1]), torch.tensor([0, 2, 2]))
    lines = partition_picture(DATA, Partition("mine", train, test, DATA.train.targets)).splitlines()
    assert lines == [
        "client  0 1 2   samples",
        "     0  █ ░ ·         5",
        "     1  · ░ ░         2",
        "",
        "tensors, mine: 2 clients, 87.5 % of the data used",
        "samples per client:      min 2, median 3.5, max 5",
        "test samples per client: min 0, median 1, max 2",
        "labels per client:       min 2, median 2, max 2",
    ]


def test_many_clients_are_sampled_and_it_says_so() -> None:
    data = labelled([k % 10 for k in range(500)])
    picture = partition_picture(data, make_partition(data, "iid", 100, 0))
    assert "shown: 40 of 100 clients" in picture
    rows = picture.splitlines()[1:41]
    assert [int(row.split()[0]) for row in (rows[0], rows[-1])] == [0, 99]
    assert "shown" not in partition_picture(data, make_partition(data, "iid", 40, 0))


def test_many_labels_fit_the_width() -> None:
    data = labelled([k % 250 for k in range(5000)])
    for width in (30, 80, 200):
        lines = partition_picture(data, make_partition(data, "labels", 50, 0, per_client=20), width=width).splitlines()
        grid = lines[: lines.index("")]
        assert max(len(line) for line in grid) <= max(width, 30)
        assert any(line.startswith("each column: ") for line in grid) == (width < 262)


def test_tokens_show_sizes() -> None:
    data = load("synthetic_text", users=3, per_user=2, words=20)
    picture = partition_picture(data, make_partition(data, "natural"), width=40)
    assert picture.splitlines()[1] == "     0        2  " + "█" * 22
    assert "labels per client" not in picture


def test_labels_per_client_agrees_with_labels() -> None:
    data = labelled([k * k % 7 for k in range(200)])
    partition = make_partition(data, "dirichlet", 9, 1, alpha=0.3)
    assert labels_per_client(partition).tolist() == [len(partition.labels[client]) for client in range(9)]
