"""Seeds made of (seed, purpose, numbers): the words that numpy makes of them, however they are handed over."""

import zlib

import numpy as np
import pytest

from fedwidth.randomness import numpy_generator, torch_seed

NUMBERS = [(0,), (0, 0), (7, 3, 1), (2**32 - 1,), (2**32,), (2**40, 5), (1, 2**63)]


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1, 2**32, 2**70])
@pytest.mark.parametrize("numbers", NUMBERS)
def test_seeds_are_those_of_numpys_sequence(seed, numbers):
    """Also where a number has more than 32 bits, which numpy cuts into several words."""
    sequence = np.random.SeedSequence([seed, zlib.crc32(b"draw"), *numbers])
    assert torch_seed(seed, "draw", *numbers) == int(sequence.generate_state(1, np.uint64)[0]) // 2
    assert numpy_generator(seed, "draw", *numbers).random() == np.random.default_rng(sequence).random()


def test_every_number_counts():
    """But for zeros at the end, which numpy leaves out."""
    assert len({torch_seed(1, "draw", *numbers) for numbers in NUMBERS}) == len(NUMBERS) - 1
    assert torch_seed(1, "draw", 0) == torch_seed(1, "draw", 0, 0)
    assert torch_seed(1, "draw", 3) != torch_seed(1, "drop", 3)


def test_numbers_below_0_are_refused():
    with pytest.raises(ValueError, match="non-negative"):
        torch_seed(-1, "draw")
