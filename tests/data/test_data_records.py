from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from fedwidth.data import IGNORE, Split, Transform, from_dataset, from_tensors, make_partition
from fedwidth.data.trees import leaves
from fedwidth.errors import DataError, OptionError

X, Y = torch.rand(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])


def test_from_tensors() -> None:
    data = from_tensors(X, Y.int(), X[:3], Y[:3], classes=5)
    assert (data.classes, data.shape, len(data.train), len(data.test)) == (5, (4,), 6, 3)
    assert data.train.targets.dtype == torch.int64
    assert torch.equal(data.example(2), X[:2])
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.classes = 3  # type: ignore[misc]


def test_examples_and_batches_are_copies() -> None:
    """A model may write into what it is given."""
    both = {"seen": X.clone(), "asked": Y.clone()}
    for inputs in (X.clone(), both):
        data = from_tensors(inputs, X.clone(), inputs, X.clone())
        given = data.example(), data.example_targets(), *data.batch(data.train, torch.arange(6))
        for tensor in (leaf for tree in given for leaf in leaves(tree)):
            tensor.zero_()
        kept = leaves(data.train.inputs)[0], data.train.targets
        assert all(torch.equal(tensor, X) for tensor in kept)
    assert [len(leaves(from_tensors(X[:n], Y[:n], X, Y).example())[0]) for n in (1, 2, 3)] == [1, 2, 2]


def test_batch_gathers_transforms_and_widens_targets() -> None:
    images = torch.arange(2 * 3 * 2 * 2, dtype=torch.uint8).reshape(2, 3, 2, 2)
    transform = Transform(mean=(0.0,) * 3, std=(1.0,) * 3, scale=1)
    data = from_tensors(images, Y[:2], images, Y[:2], kind="images", transform=transform)
    inputs, targets = data.batch(data.train, torch.tensor([1, 0, 1]))
    assert torch.equal(inputs, images[[1, 0, 1]].float())
    assert targets.tolist() == [1, 0, 1]
    short = Split(torch.ones(1, 2, dtype=torch.int16), torch.tensor([[4, IGNORE]], dtype=torch.int16))
    tokens, following = dataclasses.replace(data, transform=Transform()).batch(short, torch.tensor([0]))
    assert (tokens.dtype, following.dtype, following.tolist()) == (torch.int64, torch.int64, [[4, IGNORE]])


def test_bytes_are_scaled_unless_a_transform_is_given() -> None:
    white = torch.full((2, 1, 2, 2), 255, dtype=torch.uint8)
    data = from_tensors(white, Y[:2], white, Y[:2], kind="images")
    assert data.example().unique().tolist() == [1.0]


def test_tokens_count_inputs_as_classes() -> None:
    tokens = torch.tensor([[9, 1]])
    assert from_tensors(tokens, tokens % 3, tokens, tokens % 3, kind="tokens").classes == 10


def test_from_dataset() -> None:
    data = from_dataset(TensorDataset(X, Y), TensorDataset(X[:2], Y[:2]), name="mine")
    assert torch.equal(data.train.inputs, X)
    assert torch.equal(data.train.targets, Y)
    assert data.name == "mine"


class Pairs(Dataset[object]):
    def __init__(self, pairs: list[object]) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, number: int) -> object:
        return self.pairs[number]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "no samples"),
        ([1.0], "not an \\(input, target\\) pair"),
        ([("an image", 0)], "has a str, not a tensor"),
        ([(torch.zeros(2), 0), (torch.zeros(3), 0)], "one shape"),
        ([(torch.zeros(2), "cat")], "has a str, not a tensor"),
    ],
)
def test_bad_datasets(pairs: list[object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_dataset(Pairs(pairs), TensorDataset(X, Y))


def test_dataset_without_length() -> None:
    class Stream(Dataset[object]):
        def __getitem__(self, number: int) -> object:
            return X[0], 0

    with pytest.raises(OptionError, match="length"):
        from_dataset(Stream(), TensorDataset(X, Y))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_inputs": X[:0], "train_targets": Y[:0]}, "training set has no samples"),
        ({"train_targets": Y[:5]}, "6 inputs but 5 targets"),
        ({"test_targets": Y.float()}, "training targets are whole numbers, but test targets numbers with a fraction"),
        ({"train_targets": Y / 0.0, "test_targets": Y / 0.0}, "training targets hold values that are infinite"),
        ({"train_targets": Y - 1}, "not be negative"),
        ({"test_inputs": torch.rand(6, 3)}, "different shapes"),
        ({"test_inputs": X.double()}, "training inputs are float32, but test inputs float64"),
        ({"test_inputs": X.byte()}, "training inputs are float32, but test inputs uint8"),
        ({"train_inputs": X.to_sparse()}, "training inputs must be dense tensors, not torch.sparse_coo"),
        ({"train_inputs": X / 0}, "not finite"),
        ({"classes": 2}, "found the class 2, but 2 classes"),
        ({"train_users": torch.zeros(5)}, "users of shape"),
        ({"train_inputs": [1, 2]}, "must be a tensor"),
        ({"kind": "images"}, "channels, height, width"),
    ],
)
def test_bad_tensors(change: dict[str, object], message: str) -> None:
    good: dict[str, object] = {"train_inputs": X, "train_targets": Y, "test_inputs": X, "test_targets": Y}
    with pytest.raises(DataError, match=message):
        from_tensors(**(good | change))  # type: ignore[arg-type]


def test_unknown_kind() -> None:
    with pytest.raises(OptionError, match="did you mean 'images'"):
        from_tensors(X, Y, X, Y, kind="image")  # type: ignore[arg-type]


def test_data_and_who_has_it_are_printed_in_one_line() -> None:
    data = from_tensors(X, Y, X, Y, name="mine", train_users=Y)
    assert repr(data) == "Data('mine', tensors [4], 6 training and 6 test samples, 3 classes)"
    assert repr(data.train) == "Split(6 samples, each with its user)"
    split = make_partition(data, "natural")
    assert repr(split.train) == "Shares(6 samples, 3 clients)"
    assert len(repr(split)) < 150
