"""The first screen of the results page: claims of the papers beside what the runs say, worked by hand."""

from pathlib import Path

import pytest
from reproduction.claims import CLAIMS, GAINS, Accuracy, Lead, Overall, claim_table
from reproduction.page import find_tables
from reproduction.yardsticks import Yardsticks

from recorded_runs import cell
from small_runs import small

ROOT = Path(__file__).parents[2]


def test_an_accuracy_stands_beside_the_published_one():
    tables = {"t": [cell("a", 70.0, 60.0, 62.0, spread=1.5), cell("b", 50.0)]}
    assert Accuracy("A", "t", "a").row(tables) == ["A", "70.00 ± 1.50", "61.00 ± 1.41", "2", "below"]
    assert Accuracy("B", "t", "b").row(tables) == ["B", "50.00", "not run", "–", "open"]


def test_a_lead_says_whether_zero_and_whether_the_published_lead_are_excluded():
    # Leads of 1, 2 and 3: mean 2, standard error 0.577, times 4.30 is 2.48.
    tables = {"t": [cell("a", 64.0, 51.0, 62.0, 73.0), cell("b", 60.0, 50.0, 60.0, 70.0), cell("c", 59.0, 40.0)]}
    assert Lead("A", "t", ("a", "b")).row(tables) == ["A", "+4.0", "+2.0 (−0.5 to +4.5)", "3", "not decided"]
    tables["t"][0] = cell("a", 65.0, 51.0, 62.0, 73.0)
    (*_, so) = Lead("A", "t", ("a", "b")).row(tables)
    assert so == "not decided; +5.0 is excluded"
    assert Lead("A", "t", ("a", "c")).row(tables) == ["A", "+6.0", "+11.0", "1", "one seed"]
    tables["t"][2] = cell("c", 59.0)
    assert Lead("A", "t", ("a", "c")).row(tables) == ["A", "+6.0", "not run", "–", "open"]


def test_a_lead_over_all_columns_of_a_table():
    grid = []
    for rounds, gap in ((3, 1.0), (4, 2.0), (5, 3.0)):
        for name, number, ours in (("fedrolex", 62.0, 50.0 + gap), ("heterofl", 60.0, 50.0)):
            settings = small(f"rounds={rounds}", f"method.name={name}")
            grid.append(cell(f"r{rounds}/{name}", number, ours, ours + 5, settings=settings))
    row = Overall("A", "t", ("fedrolex", "heterofl")).row({"t": grid})
    assert row == ["A", "+2.0", "+2.0 (−0.5 to +4.5)", "2", "not decided"]
    assert Overall("A", "t", ("fedrolex", "fedavg")).row({"t": grid}) == ["A", "–", "not run", "–", "open"]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.says)
def test_every_claim_names_cells_of_its_recipe_with_the_number_the_paper_prints(claim):
    """Of FedRolex Table 3: 69.44 and 84.45; 63.90 and 73.19 for HeteroFL, 46.64 for Federated Dropout. FedBRB Table 3:
    53.51 less 38.05, 61.62 less 52.67. Thesis Table 3.1: 91.37."""
    printed = claim.row(find_tables([]))[1]
    if not isinstance(claim, Overall):
        assert printed in {"69.44 ± 1.50", "84.45 ± 0.36", "+5.5", "+11.3", "+22.8", "+15.5", "+8.9", "91.37"}


def test_what_needs_no_training_and_what_no_paper_asks_stand_below():
    *_, costs, half, first, second, third, fourth, last = claim_table(
        find_tables([]), ROOT / "results", Yardsticks([])
    ).splitlines()
    asked = [f"| {gain.says} | – | not run | – | open |" for gain in GAINS]
    assert [first, second, third, fourth, last] == asked
    assert costs == "| FedRolex's costs (Table 7) | 9 numbers | 9 agree | – | exact |"
    assert half.endswith("| half | 49.8 % | – | exact |"), "255/512, in closed form"
