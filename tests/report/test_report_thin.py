import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwidth.report.thin import thin

values = st.one_of(st.floats(-1e6, 1e6), st.just(math.nan), st.just(math.inf))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(values, values, values), min_size=1, max_size=80), st.integers(1, 3), st.integers(8, 60))
def test_extremes_ends_and_the_limit(rows, count, most):
    columns = [np.array(column) for column in list(zip(*rows, strict=True))[:count]]
    kept = thin(columns, most)
    assert len(kept) <= most
    assert (np.diff(kept) > 0).all()
    assert (kept[0], kept[-1]) == (0, len(rows) - 1)
    for column in columns:
        finite = column[np.isfinite(column)]
        drawn = column[kept][np.isfinite(column[kept])]
        if len(finite):
            assert (drawn.min(), drawn.max()) == (finite.min(), finite.max())


def test_short_lines_are_left_alone():
    assert thin([np.arange(400.0)], 400).tolist() == list(range(400))


def test_a_stretch_of_nan_stays_visible():
    column = np.ones(10_000)
    column[4000:6000] = math.nan
    assert np.isnan(column[thin([column], 400)]).sum() >= 30


def test_a_single_spike_survives():
    column = np.zeros(2500)
    column[1234] = 1.0
    assert 1234 in thin([column], 120)
