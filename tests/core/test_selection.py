import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwidth.core import selection
from fedwidth.randomness import numpy_generator, torch_generator

sizes = st.integers(1, 60).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size)))


@given(sizes, st.integers(-200, 200), st.integers(0, 99))
@settings(deadline=None)
def test_every_selection_is_sorted_distinct_and_in_range(size_kept, start, seed):
    size, kept = size_kept
    generator = numpy_generator(seed, "test")
    seen = torch.from_numpy(generator.integers(0, 5, size))
    for units in (
        selection.prefix(size, kept),
        selection.rolling(size, kept, start),
        selection.random(size, kept, generator),
        selection.least_seen(size, kept, seen, clients=4, generator=generator),
        selection.block(size, kept, abs(start)),
    ):
        assert len(units) == kept
        assert units.dtype == torch.long
        assert units[0] >= 0
        assert units[-1] < size
        assert (units[1:] > units[:-1]).all()


@given(sizes, st.integers(0, 200))
@settings(deadline=None)
def test_rolling_is_equation_4(size_kept, round):
    size, kept = size_kept
    by_hand = {(round + i) % size for i in range(kept)}
    assert set(selection.rolling(size, kept, round).tolist()) == by_hand


@given(sizes)
@settings(deadline=None)
def test_blocks_cover_the_axis(size_kept):
    size, kept = size_kept
    covered = {u for b in range(selection.blocks(size, kept)) for u in selection.block(size, kept, b).tolist()}
    assert covered == set(range(size))


def test_least_seen_follows_the_odds_of_equation_2_3():
    # N = 3 clients; seen 3, 0, 1 gives odds 1, 4, 3 of 8.
    generator = np.random.default_rng(0)
    seen = torch.tensor([3, 0, 1])
    draws = [int(selection.least_seen(3, 1, seen, clients=3, generator=generator)) for _ in range(20_000)]
    assert np.bincount(draws, minlength=3) / 20_000 == pytest.approx([1 / 8, 4 / 8, 3 / 8], abs=0.015)


def test_random_is_uniform():
    generator = np.random.default_rng(1)
    held = np.zeros(6)
    for _ in range(6_000):
        held[selection.random(6, 2, generator).numpy()] += 1
    assert held / 6_000 == pytest.approx([1 / 3] * 6, abs=0.03)


def test_randomness_depends_on_all_of_its_arguments_and_nothing_else():
    torch.manual_seed(1)
    first = numpy_generator(0, "a", 1, 2).random()
    torch.manual_seed(2)
    np.random.seed(3)
    assert numpy_generator(0, "a", 1, 2).random() == first
    others = [numpy_generator(1, "a", 1, 2), numpy_generator(0, "b", 1, 2), numpy_generator(0, "a", 2, 1)]
    assert first not in [g.random() for g in others]
    assert torch.rand(1, generator=torch_generator(0, "a", 1)) == torch.rand(1, generator=torch_generator(0, "a", 1))
