"""Recorded runs: written whole, read despite half lines, shown beside the published numbers."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from fedwidth.errors import StateError
from fedwidth.recipe import Paper, Variant
from fedwidth.results import (
    append_record,
    count_steps,
    estimate_seconds,
    experiment_of,
    find_records,
    make_record,
    path_of,
    read_all,
    read_records,
)
from fedwidth.results_cells import Cell, judge
from fedwidth.results_exact import agrees, coverage
from fedwidth.results_page import write_page
from small_runs import small

ROOT = Path(__file__).parents[1]


def record(settings, *, label="run", final=0.5, best=None, seconds=10.0, steps=100):
    lines = [
        {"round": 1, "seconds": seconds / 2},
        {"round": 2, "global_accuracy": best or final, "global_loss": 1 / 3, "seconds": seconds},
        {"round": 3, "global_accuracy": final, "local_accuracy": 0.75, "global_loss": None, "seconds": seconds},
    ]
    return make_record("table", label, settings, changes=["device=cpu"], metrics=lines, steps=steps)


def cell(label, number, ours, *, spread=None, best=False, settings=None):
    records = () if ours is None else (record(settings or small(), final=ours / 100),)
    paper = Paper(table="T", number=number, spread=spread, best=best)
    return Cell(Variant(label, settings or small(), paper), records)


def test_a_record_holds_what_is_needed_to_repeat_and_to_plot_it(tmp_path):
    made = record(small("seed=4"), final=0.5, best=0.625)
    append_record(tmp_path, made)
    (line,) = [json.loads(text) for text in path_of(tmp_path, "table").read_text().splitlines()]
    assert line["evaluations"] == [[2, 0.625, None, 0.333333], [3, 0.5, 0.75, None]]
    assert (line["final_accuracy"], line["best_accuracy"], line["best_round"]) == (0.5, 0.625, 2)
    assert (line["local_accuracy"], line["seed"], line["precision"]) == (0.75, 4, "float32")
    assert line["settings"] == asdict(small("seed=4"))
    assert line["hardware"]
    assert read_records(tmp_path, "table") == [made]


def test_a_half_line_is_ignored_and_spoils_nothing_after_it(tmp_path):
    one, two = record(small("seed=1")), record(small("seed=2"))
    append_record(tmp_path, one)
    path = path_of(tmp_path, "table")
    path.write_bytes(path.read_bytes() + b'{"recipe": "table", "lab')
    assert read_records(tmp_path, "table") == [one]
    append_record(tmp_path, two)
    assert read_records(tmp_path, "table") == [one, two]


def test_a_line_that_is_no_run_is_refused(tmp_path):
    (tmp_path / "table.jsonl").write_text('{"recipe": "table"}\n')
    with pytest.raises(StateError, match="line 1 of"):
        read_records(tmp_path, "table")
    assert read_records(tmp_path, "other") == []


def test_unfinished_runs_are_kept_apart(tmp_path):
    append_record(tmp_path / "unfinished", record(small()))
    assert read_all(tmp_path) == []
    assert len(read_all(tmp_path / "unfinished")) == 1


@pytest.mark.parametrize(
    "change", ["precision=bf16", "evaluation.every=1", "data.root=elsewhere", "workers=3", "seed=2"]
)
def test_where_and_how_often_do_not_make_another_experiment(change):
    assert experiment_of(asdict(small(change))) == experiment_of(asdict(small()))


@pytest.mark.parametrize("change", ["training.lr=0.2", "rounds=4", "method.name=heterofl", "evaluation.norm=batch"])
def test_everything_else_does(change):
    assert experiment_of(asdict(small(change))) != experiment_of(asdict(small()))
    assert find_records([record(small())], small(change)) == []


def test_a_run_recorded_before_a_setting_existed_still_counts():
    old = record(small())
    del old.settings["server"]["lr_decay"]
    assert find_records([old], small()) == [old]


def test_of_one_seed_the_last_run_counts():
    one, two, three = (record(small(f"seed={seed}"), final=final) for seed, final in ((2, 0.1), (1, 0.2), (2, 0.3)))
    assert find_records([one, two, three], small()) == [two, three]


def test_steps_and_times_by_hand():
    # 1437 digits on 6 clients: 239.5 samples, 4 batches of 64; 3 clients, 3 rounds.
    assert count_steps(small()) == 36
    assert count_steps(small("training.steps=7", "data.name=text")) == 63
    assert count_steps(small("data.name=text")) is None
    known = [record(small("method.name=heterofl"), seconds=6.0, steps=36), record(small(), seconds=18.0, steps=36)]
    assert estimate_seconds(small("rounds=6"), known) == pytest.approx(36.0), "like the run of the same method"
    assert estimate_seconds(small("method.name=fedbrb"), known) == pytest.approx(12.0), "else the mean of both"
    assert estimate_seconds(small("model.name=cnn", "model.options={}"), known) is None


def test_the_order_of_methods_by_hand():
    # Published a > b > c. Here b > a > c: of three pairs one is turned round, and a - b = 1 is within 0.8 + 0.5.
    cells = [cell("a", 70.0, 60.0, spread=0.8), cell("b", 69.0, 65.0, spread=0.5), cell("c", 40.0, 30.0, spread=1.0)]
    verdict = judge(cells)
    assert (verdict.pairs, verdict.reversed, verdict.close) == (3, (("a", "b"),), 1)
    assert "holds in 2 of 3 pairs" in str(verdict)
    assert "b is above a here (1 of them" in str(verdict)
    assert str(judge(cells[1:])) == "the paper's order holds"
    assert str(judge(cells[:1])) == "nothing to compare yet"


def test_cells_that_were_not_run_or_have_equal_numbers_are_no_pairs():
    assert judge([cell("a", 70.0, 60.0), cell("b", 60.0, None), cell("c", None, 50.0)]).pairs == 0
    assert judge([cell("a", 70.0, 60.0), cell("b", 70.0, 50.0)]).pairs == 0


def test_in_a_grid_methods_are_compared_within_a_setting_only():
    one, other = small("rounds=3"), small("rounds=4")
    also = small("rounds=3", "method.name=heterofl")
    cells = [
        cell("r3/fedrolex", 70.0, 70.0, settings=one),
        cell("r3/heterofl", 60.0, 75.0, settings=also),
        cell("r4/fedrolex", 80.0, 10.0, settings=other),
    ]
    assert (judge(cells).pairs, judge(cells).reversed) == (1, (("r3/fedrolex", "r3/heterofl"),))


def test_the_best_round_answers_where_the_paper_reports_it():
    made = record(small(), final=0.5, best=0.75)
    variant = Variant("a", small(), Paper(number=70.0))
    assert Cell(variant, (made,)).ours == 50.0
    assert Cell(replace(variant, paper=Paper(number=70.0, best=True)), (made,)).ours == 75.0


def test_table_7_is_judged_by_its_printed_digits():
    assert agrees("0.17", 0.1749)
    assert not agrees("0.17", 0.1751)
    assert not agrees("149.048384", 149.06)


def test_coverage_of_the_widest_tensors_is_the_closed_form():
    # A window of n of K units rolling along the diagonal meets the pairs less than n apart: (2n - 1) / K of them.
    found = coverage(ROOT / "results")["512x512"]
    for share, kept in (("1/2", 256), ("1/4", 128), ("1/8", 64), ("1/16", 32)):
        assert found["fedrolex"][share] == pytest.approx((2 * kept - 1) / 512, abs=1e-6)
        assert found["heterofl"][share] == pytest.approx((kept / 512) ** 2, abs=1e-6)
        assert found["fedbrb"][share] == 1


def test_the_page_in_the_repository_is_up_to_date():
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert page == write_page(ROOT / "results"), "run `make results`"


def test_every_recorded_run_is_a_run_of_its_recipe_and_was_not_cut_short():
    from fedwidth.config import read_settings

    for made in read_all(ROOT / "results"):
        (run,) = read_settings(made.recipe).only(made.label).runs
        assert find_records([made], run.settings) == [made], f"{made.recipe} {made.label}: the recipe has changed"
        assert made.evaluations[-1][0] == made.rounds == run.settings.rounds
        assert made.final_accuracy == pytest.approx(made.evaluations[-1][1], abs=1e-6)
        assert made.best_accuracy == pytest.approx(max(each[1] for each in made.evaluations), abs=1e-6)
        assert made.version
        assert not made.settings["data"]["root"], "no path of a machine"
