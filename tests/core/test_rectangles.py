"""Positions as rectangles, worked by hand."""

import torch

from fedwidth.core.rectangles import MAX_RECTANGLES, rectangles, runs_of


def test_a_window_that_wraps_around_is_two_runs():
    # Units 0, 1 and 6, 7 of 8: they lie at 0, 1 and 2, 3 of the narrow axis.
    assert runs_of(torch.tensor([0, 1, 6, 7]), 8) == [(slice(0, 2), slice(0, 2)), (slice(6, 8), slice(2, 4))]
    assert runs_of(torch.arange(8), 8) == [(slice(None), slice(None))]


def test_two_windows_that_wrap_around_are_four_rectangles_that_move_everything():
    full = torch.arange(48.0).view(8, 6)
    rows, columns = torch.tensor([0, 1, 6, 7]), torch.tensor([0, 4, 5])
    found = rectangles([runs_of(rows, 8), runs_of(columns, 6)])
    assert len(found) == MAX_RECTANGLES == 4
    narrow = torch.full((4, 3), torch.nan)
    for source, target in found:
        narrow[target] = full[source]
    assert torch.equal(narrow, full[rows][:, columns])


def test_more_rectangles_than_are_worth_it_are_none():
    scattered = runs_of(torch.tensor([0, 2, 4, 6, 8]), 9)
    assert rectangles([scattered]) is None
    three = runs_of(torch.tensor([0, 2, 4]), 5)
    assert rectangles([three, three]) is None
    assert len(rectangles([three])) == 3
