"""What methods gain in the papers' settings, over recorded yardsticks, worked by hand."""

from dataclasses import replace

import pytest
from reproduction.claims import Gain
from reproduction.worth import find_worth, over_columns, worth_texts
from reproduction.yardsticks import Measured, Yardsticks

from fedwidth.analysis.yardsticks import EXCLUDE, SMALLEST, yardsticks
from recorded_runs import cell, record
from small_runs import small


def recorded(settings, kind, *accuracies):
    """The runs of a yardstick of these settings, with these accuracies in percent, one a seed."""
    found = yardsticks(settings)[kind]
    return [record(replace(found, seed=seed), final=each / 100) for seed, each in enumerate(accuracies, 1)]


MIXED = small("method.name=fedrolex", "devices.capacities=a1-b1")


def test_a_gain_is_over_the_better_yardstick_and_runs_of_two_rows_count_once():
    known = Yardsticks([*recorded(MIXED, EXCLUDE, 50, 60, 70), *recorded(MIXED, SMALLEST, 40, 65, 66)])
    mine = cell("fedrolex", 60.0, 51, 62, 73, settings=MIXED)
    twice = replace(mine, run=replace(mine.run, label="again"))
    (worth,) = find_worth([mine], known)
    assert worth.kind == EXCLUDE, "60 on average, smallest for all 57"
    assert worth.gain.values == pytest.approx((1, 2, 3))
    _, table = worth_texts({"t": [mine, twice], "u": [cell("not-run", 60.0, settings=MIXED)]}, known)
    assert table.splitlines()[2:] == ["| `t` | 1 | exclude | +2.0 | 1 of 1 | 0 | 0 | 1 | 0 |"]
    assert list(worth_texts({"t": [mine]}, Yardsticks([]))) == [], "no yardstick, no gain"


def test_one_seed_decides_nothing():
    known = Yardsticks(recorded(MIXED, EXCLUDE, 50))
    _, table = worth_texts({"t": [cell("fedrolex", 60.0, 45, settings=MIXED)]}, known)
    assert table.splitlines()[-1] == "| `t` | 1 | exclude | at most −5.0 | 0 of 1 | – | – | – | – |"


def test_a_yardstick_with_fewer_seeds_than_the_run_says_which():
    known = Yardsticks([*recorded(MIXED, EXCLUDE, 50, 60, 70), *recorded(MIXED, SMALLEST, 40)])
    titles, ((*shown, gain),) = known.columns([Measured(MIXED, {1: 51.0, 2: 62.0, 3: 73.0})])
    assert titles == [EXCLUDE, SMALLEST, "gain"]
    assert shown == ["60.00 ± 10.00", "40.00 (seed 1)"]
    assert gain == "+2.0 (−0.5 to +4.5) over exclude"


def test_methods_of_a_grid_stand_in_one_line_each_over_all_columns():
    cells, records = [], []
    for rounds, gap in ((3, 1.0), (4, 2.0), (5, 3.0)):
        for name, worse in (("fedrolex", 0), ("heterofl", 10)):
            settings = small(f"rounds={rounds}", f"method.name={name}", "devices.capacities=a1-b1")
            cells.append(cell(f"r{rounds}/{name}-x", 60.0, 50 + gap - worse, 55 + gap - worse, settings=settings))
        records += recorded(settings, EXCLUDE, 50, 55)
    known = Yardsticks(records)
    overall = over_columns(find_worth(cells, known))
    assert {name: each.values for name, each in overall.items()} == {
        "fedrolex-x": pytest.approx((1, 2, 3)),
        "heterofl-x": pytest.approx((-9, -8, -7)),
    }
    *_, table = worth_texts({"t": cells}, known)
    assert table.splitlines()[2:] == [
        "| `t` | fedrolex-x | +2.0 (−0.5 to +4.5) | 3 of 3 |",
        "| `t` | heterofl-x | −8.0 (−10.5 to −5.5) | 0 of 3 |",
    ]
    row = Gain("G", "t", "fedrolex-x").row({"t": cells}, known)
    assert row == ["G", "–", "+2.0 (−0.5 to +4.5)", "2", "not decided over columns"]


def test_the_first_screen_has_the_gain_of_a_single_run():
    known = Yardsticks(recorded(MIXED, EXCLUDE, 50, 60, 70))
    tables = {"t": [cell("fedrolex", 60.0, 51, 62, 73, settings=MIXED)]}
    assert Gain("G", "t", "fedrolex").row(tables, known) == ["G", "–", "+2.0 (−0.5 to +4.5)", "3", "not decided"]
    assert Gain("G", "t", "fedrolex").row(tables, Yardsticks([])) == ["G", "–", "not run", "–", "open"]
