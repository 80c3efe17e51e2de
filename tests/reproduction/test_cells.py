"""Cells of published tables: what agrees with the printed number, and which runs answer to it."""

from dataclasses import replace

import pytest
from reproduction.cells import ABOVE, AGREES, BELOW, Cell, count_once
from reproduction.summary import total_text

from fedwidth.config.recipe import Paper, Variant
from recorded_runs import cell, record
from small_runs import small


def test_what_agrees_with_the_published_number():
    assert cell("a", 70.0, 69.0).agreement == cell("a", 70.0, 71.0).agreement == AGREES, "within a point"
    assert cell("a", 70.0, 68.9).agreement == BELOW
    assert cell("a", 70.0, 98.0).agreement == ABOVE, "28 points more is no agreement"
    assert cell("a", 70.0, 67.5, spread=2.5).agreement == AGREES
    assert cell("a", 70.0, 71.0, spread=0.5).agreement == AGREES, "nobody's spread makes a point too much"
    assert cell("a", 70.0).agreement == cell("a", None, 70.0).agreement == ""
    assert cell("a", 70.0, 60.0, 61.0).difference == pytest.approx(-9.5)


def test_a_run_that_answers_to_several_cells_is_counted_once():
    first, other = cell("fedavg", 70.0, 60.0, 61.0), cell("heterofl", 70.0, 60.0, 61.0)
    assert count_once([first, other, cell("unrun", 60.0)]) == [first], "their records are of one run, as by their label"
    renamed = tuple(replace(record, label="b") for record in other.records)
    assert len(count_once([first, replace(other, records=renamed)])) == 2
    copies = tuple(replace(record, same_as=f"table run, seed {record.seed}") for record in renamed)
    assert count_once([first, replace(other, records=copies)]) == [first], "trained as the first one"


def test_a_printed_number_with_two_readings_is_one_published_accuracy():
    first, other = cell("fedrolex", 70.0, 60.0, 61.0), cell("heterofl", 65.0, 60.0)
    faster = replace(first.run, settings=small("training.lr=0.5"))
    text = total_text({"table": [first, other, cell("unrun", 60.0)], "again": [replace(first, run=faster)]}, "nothing")
    assert "- 2 of 3 published accuracies have been run" in text
    assert ", 1 of them in more than one reading of the paper." in text
    assert "1 of them" not in total_text({"table": [first], "same": [first]}, "nothing")


def test_the_best_round_answers_where_the_paper_reports_it():
    made = record(small(), final=0.5, best=0.75)
    variant = Variant("a", small(), Paper(number=70.0))
    assert Cell(variant, (made,)).ours == 50.0
    assert Cell(replace(variant, paper=Paper(number=70.0, best=True)), (made,)).ours == 75.0
