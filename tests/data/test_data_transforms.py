from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwidth.data import Transform
from fedwidth.data.transforms import crop_and_flip
from fedwidth.errors import OptionError

CIFAR = Transform(mean=(0.5, 0.25, 0.0), std=(0.5, 0.25, 1.0), scale=255, padding=4, flip=True)


def images(samples: int = 6) -> torch.Tensor:
    return torch.randint(0, 256, (samples, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_normalisation_by_hand() -> None:
    batch = torch.full((1, 3, 2, 2), 51, dtype=torch.uint8)  # 51 / 255 = 0.2
    out = CIFAR(batch)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out[0, :, 0, 0], torch.tensor([-0.6, -0.2, 0.2]))


def test_tokens_become_int64_and_floats_stay() -> None:
    tokens = torch.tensor([[1, 2]], dtype=torch.int16)
    assert Transform()(tokens, train=True).dtype == torch.int64
    values = torch.rand(2, 3)
    assert Transform()(values) is values


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 1)), min_size=1, max_size=5))
def test_crop_and_flip_is_pad_slice_and_mirror(draws: list[tuple[int, int, int]]) -> None:
    batch = images(len(draws))[:, :, :5, :7]
    out = crop_and_flip(batch, torch.tensor(draws), padding=2)
    for number, (row, column, flip) in enumerate(draws):
        padded = torch.zeros(3, 9, 11, dtype=torch.uint8)
        padded[:, 2:7, 2:9] = batch[number]
        expected = padded[:, row : row + 5, column : column + 7]
        assert torch.equal(out[number], expected.flip(-1) if flip else expected)


@pytest.mark.parametrize("draw", [(0, 4, 0), (4, 0, 1), (2, 2, 1)])
def test_a_mirrored_border_is_pytorchs_reflection(draw: tuple[int, int, int]) -> None:
    batch = images(2)[:, :, :5, :7]
    out = crop_and_flip(batch, torch.tensor([draw] * 2), padding=2, mirror=True)
    padded = torch.nn.functional.pad(batch.float(), (2, 2, 2, 2), mode="reflect").byte()
    row, column, flip = draw
    expected = padded[:, :, row : row + 5, column : column + 7]
    assert torch.equal(out, expected.flip(-1) if flip else expected)


def test_border_is_black_before_normalisation() -> None:
    white = torch.full((1, 3, 8, 8), 255, dtype=torch.uint8)
    out = CIFAR(white, True, draws=torch.tensor([[0, 0, 0]]))
    assert out[0, :, 0, 0].tolist() == [-1.0, -1.0, 0.0]  # (0 - mean) / std
    assert out[0, :, 7, 7].tolist() == [1.0, 3.0, 1.0]


def test_same_generator_same_batch_and_draws_cover_their_range() -> None:
    first = CIFAR(images(), True, torch.Generator().manual_seed(3))
    again = CIFAR(images(), True, torch.Generator().manual_seed(3))
    other = CIFAR(images(), True, torch.Generator().manual_seed(4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    draws = CIFAR.draw(2000, torch.Generator().manual_seed(0))
    assert [draws[:, i].unique().tolist() for i in range(3)] == [list(range(9)), list(range(9)), [0, 1]]


def test_given_draws_are_those_of_the_generator() -> None:
    draws = CIFAR.draw(6, torch.Generator().manual_seed(5))
    assert torch.equal(CIFAR(images(), True, torch.Generator().manual_seed(5)), CIFAR(images(), True, draws=draws))


def test_evaluation_is_not_augmented_and_training_needs_a_generator() -> None:
    assert torch.equal(CIFAR(images()), CIFAR(images(), False, torch.Generator().manual_seed(1)))
    with pytest.raises(OptionError, match="generator"):
        CIFAR(images(), train=True)
