"""The order of the methods of a table, judged seed by seed, with intervals worked by hand."""

from dataclasses import replace

import pytest
from reproduction.order import order_texts
from reproduction.pairs import (
    CLOSE,
    FEW_SEEDS,
    HOLDS,
    REVERSED,
    count_corrected,
    count_outcomes,
    find_columns,
    find_overall,
)

from fedwidth.analysis.difference import EQUAL
from fedwidth.config.recipe import Paper
from recorded_runs import cell
from small_runs import small


def outcomes(cells):
    return dict(count_outcomes(find_columns(cells)))


def test_methods_are_compared_seed_by_seed():
    # Seeds 10 apart, the methods 1, 2 and 3 apart: mean 2, standard error 1/√3 = 0.577, times 4.30 is 2.48.
    def pair(*gaps):
        return [
            cell("a", 70.0, *(50.0 + 10 * n + gap for n, gap in enumerate(gaps))),
            cell("b", 60.0, 50.0, 60.0, 70.0),
        ]

    assert outcomes(pair(1.0, 2.0, 3.0)) == {CLOSE: 1}
    assert outcomes(pair(1.5, 2.5, 3.5)) == {HOLDS: 1}, "2.5 is more than 2.48, whatever the seeds differ by"
    assert outcomes(pair(-1.5, -2.5, -3.5)) == {REVERSED: 1}
    assert outcomes(pair(0.0, 0.0, 0.0)) == {EQUAL: 1}
    (column,) = find_columns(pair(1.0, 2.0, 3.0))
    assert str(column.pairs[0].differences) == "+2.0 (−0.5 to +4.5)"
    said, table, _ = order_texts(pair(1.5, 2.5, 3.5))
    assert said == "Order of methods, 1 pair: 1 as published."
    assert table.splitlines()[2] == "| a − b | +10.00 | +1.50, +2.50, +3.50 | +2.5 (0.0 to +5.0) | – | as published |"


def test_only_seeds_that_both_have_are_compared():
    one, two = cell("a", 70.0, 50.0, 61.0, 72.0), cell("b", 60.0, 50.0, 60.0, 70.0)
    (column,) = find_columns([replace(one, records=one.records[1:]), replace(two, records=two.records[:2])])
    assert column.pairs[0].differences.values == pytest.approx((1.0,)), "of seed 2 alone"
    assert column.pairs[0].outcome == FEW_SEEDS
    (column,) = find_columns([replace(one, records=one.records[2:]), replace(two, records=two.records[:2])])
    assert column.pairs[0].differences.values == pytest.approx((17.0,)), "of the means, 72 and 55"


def test_the_last_evaluations_are_compared_where_both_runs_have_ten():
    def long(label, number, offset, rounds):
        made = cell(label, number, 50.0, 50.0)
        rows = [[round, 0.5 + offset * round, None, None] for round in rounds]
        return replace(made, records=tuple(replace(record, evaluations=rows) for record in made.records))

    # Rounds 10 … 120 here and 5 … 120 there: of the twelve they share the last ten, 30 … 120, mean 75.
    one, other = long("a", 70.0, 0.001, range(10, 130, 10)), long("b", 60.0, 0.0, range(5, 125, 5))
    (column,) = find_columns([one, other])
    assert column.pairs[0].late.values == pytest.approx((7.5, 7.5))
    (column,) = find_columns([one, long("b", 60.0, 0.0, range(20, 240, 20))])
    assert column.pairs[0].late is None, "they share six"


def test_methods_are_compared_over_all_columns_of_a_grid():
    grid = []
    # Ours 1, 2 and 3 apart in three columns; the paper has the second method ahead in one of them, 4 and 2 and -3.
    for rounds, numbers, gap in ((3, (64.0, 60.0), 1.0), (4, (62.0, 60.0), 2.0), (5, (60.0, 63.0), 3.0)):
        for name, number, ours in zip(("fedrolex", "heterofl"), numbers, (50.0 + gap, 50.0), strict=True):
            settings = small(f"rounds={rounds}", f"method.name={name}")
            grid.append(cell(f"r{rounds}/{name}", number, ours, ours + 5, ours + 9, settings=settings))
    (overall,) = find_overall(find_columns(grid))
    assert overall.names == ("fedrolex", "heterofl")
    assert overall.published == pytest.approx(1.0)
    assert overall.ours.values == pytest.approx((1.0, 2.0, 3.0))
    assert list(order_texts(grid))[-1].splitlines()[2:] == [
        "| fedrolex − heterofl | +1.00 | +2.0 (−0.5 to +4.5) | 3 of 3 | not decided |"
    ]
    swapped = [replace(c, run=replace(c.run, paper=Paper(number=100 - (c.paper.number or 0)))) for c in grid]
    (overall,) = find_overall(find_columns(swapped))
    assert (overall.names, str(overall.ours)) == (("heterofl", "fedrolex"), "−2.0 (−4.5 to +0.5)")


def test_one_seed_cannot_be_judged():
    cells = [cell("a", 70.0, 60.0), cell("b", 65.0, 30.0, 31.0), cell("c", 60.0, 90.0, 80.0)]
    assert outcomes(cells) == {FEW_SEEDS: 2, CLOSE: 1}
    said, table, _ = order_texts(cells)
    assert said == (
        "Order of methods, 3 pairs: 1 not decided, 2 cannot be judged from one seed (1 would be as published)."
    )
    # Mean -54.5, standard error 5.5, times 12.71.
    assert table.splitlines()[2:] == ["| b − c | +5.00 | -60.00, -49.00 | −54.5 (−124.4 to +15.4) | – | not decided |"]


def test_pairs_of_a_table_are_also_taken_as_one_family():
    # Gaps of 2.5 ± 0.58 (p = 0.049) three times: each is decided, and none of three.
    gaps = (1.5, 2.5, 3.5)
    cells = [
        cell(name, 70.0 - place, *(50 + place * 9 + 10 * n + gap * place for n, gap in enumerate(gaps)))
        for place, name in enumerate("ab")
    ]
    assert count_corrected(find_columns(cells)) == 1
    cells.append(cell("c", 60.0, *(80.0 + 10 * n for n in range(3))))
    assert outcomes(cells)[REVERSED] == 3
    said = next(order_texts(cells))
    assert said.endswith("3 the other way round. 3 of 3 are decided if all are to be right (Holm).")


def test_cells_that_were_not_run_or_have_equal_numbers_are_no_pairs():
    assert find_columns([cell("a", 70.0, 60.0), cell("b", 60.0), cell("c", None, 50.0)]) == []
    assert find_columns([cell("a", 70.0, 60.0), cell("b", 70.0, 50.0)]) == []
    assert list(order_texts([cell("a", 70.0, 60.0)])) == ["Order of methods: nothing to compare yet."]


def test_in_a_grid_methods_are_compared_within_a_column_only():
    grid = []
    for rounds, published in ((3, {"fedrolex": 70.0, "heterofl": 60.0, "fedbrb": 50.0}), (4, {"fedrolex": 80.0})):
        for name, number in published.items():
            ours = {"fedrolex": 20.0, "heterofl": 75.0, "fedbrb": 40.0}[name]
            settings = small(f"rounds={rounds}", f"method.name={name}")
            grid.append(cell(f"r{rounds}/{name}/x", number, ours, ours + 1, ours + 3, settings=settings))
    (column,) = find_columns(grid)
    assert column.name == "r3/x"
    assert column.reversed == {"heterofl": ["fedrolex"], "fedbrb": ["fedrolex"]}
    assert dict(column.counts) == {REVERSED: 2, HOLDS: 1}
    said, pairs, _ = order_texts(grid)
    assert said.startswith("Order of methods, 3 pairs: 1 as published, 2 the other way round. 3 of 3 are decided")
    assert pairs.splitlines()[2] == (
        "| fedrolex − heterofl | +10.00 | -55.00, -55.00, -55.00 | −55.0 (−55.0 to −55.0) | – | the other way round |"
    )
    for name, number in (("heterofl", 70.0), ("fedbrb", 60.0)):
        settings = small("rounds=4", f"method.name={name}")
        grid.append(cell(f"r4/{name}/x", number, 5.0, 6.0, 8.0, settings=settings))
    table = list(order_texts(grid))[1].splitlines()
    assert table[0] == "| column | as published | the other way round | equal within ±1 | against the paper |"
    assert table[2:] == [
        "| r3/x | 1 | 2 | 0 | heterofl above fedrolex; fedbrb above fedrolex |",
        "| r4/x | 2 | 0 | 1 | – |",
    ]
