"""Data sets that are read when they are asked for, and clients with a data set each."""

from __future__ import annotations

import pickle
import weakref

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, SubsetRandomSampler, TensorDataset

from fedwidth.data import from_clients, from_dataset, make_partition
from fedwidth.data.reading import Reader, read_all
from fedwidth.errors import DataError, OptionError

X, Y = torch.rand(60, 4), torch.arange(60) % 3


class Counted(Dataset[object]):
    """Pairs of which every reading is counted."""

    def __init__(self, samples: list[object]) -> None:
        self.samples, self.read = samples, []

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> object:
        self.read.append(number)
        return self.samples[number]


def pairs(samples: int = 60) -> Counted:
    return Counted([(X[number], int(Y[number])) for number in range(samples)])


@pytest.mark.parametrize(
    "sample",
    [
        lambda n: (X[n], int(Y[n])),
        lambda n: (X[n].numpy(), Y[n].numpy()),
        lambda n: ({"a": X[n], "b": Y[n]}, float(n)),
        lambda n: (X[n], Y[n], X[n, :2]),
        lambda n: {"words": Y[n].repeat(3), "mask": Y[n].repeat(3) > 0, "labels": int(Y[n])},
        lambda n: (X[n], {"start": n, "end": n + 1}),
    ],
    ids=["pairs", "arrays", "dictionaries", "triples", "with labels", "targets of two"],
)
def test_read_as_needed_or_into_memory_batches_are_equal(sample) -> None:
    datasets = Counted([sample(n) for n in range(60)]), Counted([sample(n) for n in range(10)])
    held, lazy = from_dataset(*datasets), from_dataset(*datasets, cache=1)
    assert (lazy.is_lazy, held.is_lazy, len(lazy.train), lazy.shape) == (True, False, 60, held.shape)
    chosen = torch.tensor([7, 3, 59, 3])
    for one, other in zip(held.batch(held.train, chosen), lazy.batch(lazy.train, chosen), strict=True):
        assert type(one) is type(other)
        for left, right in zip(tensors(one), tensors(other), strict=True):
            assert left.dtype == right.dtype
            assert torch.equal(left, right)
    for left, right in zip(tensors(held.example()), tensors(lazy.example()), strict=True):
        assert torch.equal(left, right)
    assert held.classes == lazy.classes


def tensors(tree) -> list[Tensor]:
    return [tree] if isinstance(tree, Tensor) else list(tree.values() if isinstance(tree, dict) else tree)


def test_reading_into_memory_holds_no_more_than_a_piece_beside_all(monkeypatch) -> None:
    alive: list[list[weakref.ref[Tensor]]] = []
    read = Reader.read

    def noted(self: Reader, samples: object) -> object:
        assert sum(any(each() is not None for each in piece) for piece in alive) <= 1, "pieces are kept"
        found = read(self, samples)
        alive.append([weakref.ref(each) for each in found])
        return found

    monkeypatch.setattr(Reader, "read", noted)
    inputs, targets = read_all(Reader(pairs(), "training", cache=0), at_a_time=7)
    assert len(alive) == 9
    assert torch.equal(inputs, X)
    assert torch.equal(targets, Y)


def test_numbers_that_are_whole_at_first_alone_are_read_as_they_are() -> None:
    reader = Reader(Counted([(X[n], n if n < 4 else n + 0.5) for n in range(8)]), "training", cache=0)
    assert read_all(reader, at_a_time=2)[1].tolist() == [0, 1, 2, 3, 4.5, 5.5, 6.5, 7.5]


@pytest.mark.parametrize("late", [X[0, :3], (X[0], X[0]), {"x": X[0]}], ids=["shorter", "two", "by name"])
def test_samples_that_differ_late_are_refused(late) -> None:
    samples = [(X[n], 0) for n in range(4)] + [(late, 0) for _ in range(2)]
    with pytest.raises(DataError, match="the samples of the training data set do not have one shape"):
        read_all(Reader(Counted(samples), "training", cache=0), at_a_time=2)


def test_what_was_read_last_is_held_and_no_more() -> None:
    """A sample has four floats and a label: 24 bytes. Room for four."""
    dataset = pairs()
    reader = Reader(dataset, "training", cache=4 * 24)
    reader.read([0, 1, 2, 3])
    assert dataset.read == [0, 1, 2, 3]
    reader.read([3, 0])
    assert dataset.read == [0, 1, 2, 3], "all of them are held"
    reader.read([4])
    reader.read([0, 2, 3, 4])
    assert dataset.read == [0, 1, 2, 3, 4], "1 was asked for the longest ago"
    reader.read([1])
    assert dataset.read == [0, 1, 2, 3, 4, 1]
    assert reader._bytes == 4 * 24


def test_rows_that_are_taken_again_change_nothing_that_was_read() -> None:
    """Four samples fit: every batch lets go of some that it has read itself, and of some of the batch before."""
    reader = Reader(pairs(), "training", cache=4 * (X[0].nbytes + 8))
    generator = torch.Generator().manual_seed(0)
    kept = []
    for _ in range(30):
        chosen = torch.randint(0, 60, (7,), generator=generator)
        kept.append((chosen, reader.read(chosen.tolist())))
    for chosen, (inputs, targets) in kept:
        assert torch.equal(inputs, X[chosen])
        assert torch.equal(targets, Y[chosen])
    assert len(reader._held) == 4


def test_what_does_not_fit_is_not_held() -> None:
    dataset = pairs()
    reader = Reader(dataset, "training", cache=23)
    inputs, targets = reader.read([5, 5, 6])
    assert torch.equal(inputs, X[[5, 5, 6]])
    assert targets.tolist() == Y[[5, 5, 6]].tolist()
    assert (dataset.read, reader._bytes) == ([5, 6], 0)


def test_another_process_is_not_sent_what_is_held() -> None:
    reader = Reader(TensorDataset(X, Y), "training", cache=2**20)
    reader.read(range(60))
    again = pickle.loads(pickle.dumps(reader))
    assert (len(again), again._bytes) == (60, 0)
    assert torch.equal(again.read([3])[0], X[3:4])


def test_data_sets_that_read_several_at_once_are_asked_to() -> None:
    class AtOnce(Counted):
        def __getitems__(self, numbers: list[int]) -> list[object]:
            self.read.append(tuple(numbers))
            return [self.samples[number] for number in numbers]

    dataset = AtOnce(pairs().samples)
    Reader(dataset, "training", cache=0).read([4, 2])
    assert dataset.read == [(4, 2)]


def test_labels_are_read_once_or_taken_as_listed() -> None:
    dataset = pairs()
    data = from_dataset(dataset, pairs(6), cache=1)
    assert data.train.labels.tolist() == Y.tolist()
    assert sorted(set(dataset.read)) == list(range(60))
    listed = pairs()
    listed.targets = Y.tolist()
    data = from_dataset(listed, pairs(6), cache=1)
    assert data.train.labels.tolist() == Y.tolist()
    assert set(listed.read) <= {0, 59}
    wrong = pairs()
    wrong.targets = [9] * 60  # what the data set gives is what counts
    assert from_dataset(wrong, pairs(6), cache=1).train.labels.tolist() == Y.tolist()


def test_partitions_of_data_that_is_read() -> None:
    held, lazy = from_dataset(pairs(), pairs(9)), from_dataset(pairs(), pairs(9), cache=1)
    for kind in ("iid", "labels", "dirichlet"):
        one, other = (make_partition(data, kind, 4, 1, validation=0.2) for data in (held, lazy))
        assert torch.equal(one.train.samples, other.train.samples)
        assert torch.equal(one.labels[2], other.labels[2])
    maps = Counted([(X[n], Y[n].repeat(2, 2)) for n in range(60)])
    segmented = from_dataset(maps, maps, cache=1, classes=3)
    maps.read.clear()
    partition = make_partition(segmented, "iid", 6, 1)
    assert set(maps.read) <= {0}, "no target is read to share them out"
    assert set(partition.labels[0].tolist()) <= {0, 1, 2}
    with pytest.raises(DataError, match="no one label a sample: choose the partition iid, natural or one of your own"):
        make_partition(segmented, "labels", 6, 1)
    with pytest.raises(DataError, match="say how many, classes=…"):
        from_dataset(maps, maps, cache=1)


def test_a_split_of_some_samples() -> None:
    data = from_dataset(Counted([(X[n], float(n)) for n in range(60)]), pairs_of_floats(), cache=1)
    part = data.train.take(torch.tensor([5, 9, 2])).take(torch.tensor([2, 0]))
    assert part.read(torch.tensor([0, 1]))[1].tolist() == [2.0, 5.0]
    assert (len(part), part.labels.shape) == (2, (2, 0))


def pairs_of_floats() -> Counted:
    return Counted([(X[n], float(n)) for n in range(3)])


def test_clients_with_a_data_set_each() -> None:
    clients = [Subset(pairs(), range(start, start + 10)) for start in (0, 10, 20)]
    data = from_clients(clients, clients[:2], cache=1)
    partition = make_partition(data, "natural")
    assert partition.sizes.tolist() == [10, 10, 10]
    assert partition.test.sizes.tolist() == [10, 10, 0]
    inputs, targets = data.batch(data.train, partition[1])
    assert torch.equal(inputs, X[10:20])
    assert targets.tolist() == Y[10:20].tolist()
    assert len(from_clients(clients, pairs(5)).test) == 5


def test_clients_data_sets_are_read_several_samples_at_once_and_list_their_labels() -> None:
    class AtOnce(Counted):
        def __getitems__(self, numbers: list[int]) -> list[object]:
            self.read.append(tuple(numbers))
            return [self.samples[number] for number in numbers]

    clients = [AtOnce(pairs().samples[start : start + 10]) for start in (0, 10)]
    for start, client in zip((0, 10), clients, strict=True):
        client.targets = Y[start : start + 10].tolist()
    data = from_clients(clients, pairs(5), cache=0)
    assert data.train.labels.tolist() == Y[:20].tolist()
    assert {number for read in clients[0].read for number in read} == {0}, "to see what samples are"
    assert clients[1].read == [(9,)], "to see that the last label is as listed"
    inputs, _ = data.batch(data.train, torch.tensor([12, 3, 18, 4]))
    assert torch.equal(inputs, X[[12, 3, 18, 4]])
    assert [client.read[-1] for client in clients] == [(3, 4), (2, 8)]


def test_loaders_give_their_data_sets_and_how_batches_are_made() -> None:
    def padded(samples):
        width = max(len(x) for x, _ in samples)
        return torch.stack([torch.nn.functional.pad(x, (0, width - len(x))) for x, _ in samples]), torch.tensor(
            [y for _, y in samples]
        )

    ragged = Counted([(X[n, : 1 + n % 4], n % 2) for n in range(20)])
    data = from_dataset(
        DataLoader(ragged, batch_size=5, collate_fn=padded), DataLoader(ragged, collate_fn=padded), cache=1
    )
    inputs, targets = data.batch(data.train, torch.tensor([0, 2]))
    assert torch.equal(inputs, torch.stack([torch.cat([X[0, :1], torch.zeros(2)]), X[2, :3]]))
    assert targets.tolist() == [0, 0]
    whole = from_clients([DataLoader(Subset(ragged, [n]), collate_fn=padded) for n in range(3)], ragged_test(padded))
    assert make_partition(whole, "natural").sizes.tolist() == [1, 1, 1]
    plain = from_dataset(DataLoader(TensorDataset(X, Y), shuffle=True), TensorDataset(X, Y), cache=1)
    assert torch.equal(plain.batch(plain.train, torch.tensor([8]))[0], X[8:9])


def ragged_test(collate):
    return DataLoader(Counted([(X[0, :2], 0)]), collate_fn=collate)


class Stream(IterableDataset[object]):
    def __iter__(self):
        yield X[0], 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: from_dataset(Stream(), pairs(), cache=1), "training data set must have a length"),
        (lambda: from_dataset(DataLoader(Stream()), pairs()), "training data set must have a length"),
        (lambda: from_dataset(DataLoader(pairs(), sampler=SubsetRandomSampler([1])), pairs()), "Subset"),
        (lambda: from_dataset(pairs(), pairs(), cache=-1), "cache must be a whole number of MiB"),
        (lambda: from_clients([], pairs()), "list with a data set for each client"),
        (lambda: from_clients([Stream()], pairs()), "client 0.*must have a length"),
        (lambda: from_clients([DataLoader(pairs(), collate_fn=list), pairs()], pairs()), "one collate_fn for all"),
        (lambda: from_dataset(Counted([{"words": X[0]}] * 2), pairs(), cache=1), "dictionary without 'labels'"),
        (lambda: from_dataset(Counted([("text", 1)] * 2), pairs(), cache=1), "sample 0 .* has a str, not a tensor"),
        (lambda: from_dataset(Counted([(X[0], -1)] * 2), pairs(), cache=1), "must not be negative"),
        (lambda: from_dataset(pairs(), Counted([(X[0, :2], 0)]), cache=1), r"different shapes: \[4\] and \[2\]"),
        (lambda: from_dataset(pairs(), pairs_of_floats(), cache=1), "training targets are whole numbers, but test"),
    ],
)
def test_what_is_refused(make, message: str) -> None:
    with pytest.raises((DataError, OptionError), match=message):
        make()


def test_arrays_that_may_only_be_read_are_copied(tmp_path) -> None:
    """As rows of a file that is mapped into memory are."""
    np.save(tmp_path / "x.npy", X.numpy())
    rows = np.load(tmp_path / "x.npy", mmap_mode="r")
    data = from_dataset(Counted([(rows[n], n % 2) for n in range(6)]), Counted([(rows[0], 0)]), cache=1)
    assert torch.equal(data.batch(data.train, torch.arange(6))[0], X[:6])
