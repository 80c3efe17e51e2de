"""Recorded runs: written whole, read despite half lines, shown beside the published numbers."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from reproduction.exact import agrees, coverage
from reproduction.page import write_page
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
from reproduction.remaining import Forecast, count_remaining, remaining_texts, unrun_texts
from reproduction.summary import order_texts

from fedwidth.analysis.difference import EQUAL
from fedwidth.config.recipe import Paper, Variant
from fedwidth.data import load
from fedwidth.errors import StateError
from fedwidth.reproduce.cells import ABOVE, AGREES, BELOW, Cell, count_once
from fedwidth.reproduce.durations import SAMPLES, count_steps, estimate_seconds
from fedwidth.reproduce.records import (
    append_record,
    find_records,
    key_of,
    make_record,
    path_of,
    read_all,
    read_records,
)
from fedwidth.reproduce.started import Start, read_started, started_texts, write_started
from small_runs import small

ROOT = Path(__file__).parents[2]


def record(settings, *, label="run", final=0.5, best=None, seconds=10.0, steps=100):
    lines = [
        {"round": 1, "seconds": seconds / 2},
        {"round": 2, "global_accuracy": best or final, "global_loss": 1 / 3, "seconds": seconds},
        {"round": 3, "global_accuracy": final, "local_accuracy": 0.75, "global_loss": None, "seconds": seconds},
    ]
    return make_record("table", label, settings, changes=["device=cpu"], metrics=lines, steps=steps)


def cell(label, number, *ours, spread=None, best=False, settings=None):
    """A cell with these accuracies in percent, one a seed."""
    records = tuple(record(replace(settings or small(), seed=s), final=a / 100) for s, a in enumerate(ours, 1))
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
    assert line["clients"] is None
    assert read_records(tmp_path, "table") == [made]


def clients(folder, rows):
    folder.mkdir(exist_ok=True)
    names = ("accuracy", "capacity")
    (folder / "clients.json").write_text(json.dumps([dict(zip(names, row, strict=True)) for row in rows]))
    lines = [{"round": 3, "global_accuracy": 0.5, "seconds": 1.0}]
    settings = small("devices.capacities=a0-b1-c1")
    made = make_record("table", "run", settings, changes=[], metrics=lines, steps=1, folder=folder)
    append_record(folder, made)
    assert read_records(folder, "table")[-1] == made
    return made.clients


def test_a_record_keeps_single_clients_where_they_are_few(tmp_path):
    # The mix has the places 0 (full width, nobody), 1 (a half) and 2 (a quarter).
    assert clients(tmp_path, [(2 / 3, 0.25), (None, 0.5), (1.0, None)]) == [[0.6667, 2], [None, 1], [1.0, None]]
    assert len(clients(tmp_path, [(0.5, 0.5)] * 200)) == 200
    assert clients(tmp_path, [(0.5, 0.5)] * 201) is None


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
    assert key_of(asdict(small(change))) == key_of(asdict(small()))


@pytest.mark.parametrize("change", ["training.lr=0.2", "rounds=4", "method.name=heterofl", "evaluation.norm=batch"])
def test_everything_else_does(change):
    assert key_of(asdict(small(change))) != key_of(asdict(small()))
    assert find_records([record(small())], small(change)) == []


def test_a_run_recorded_before_a_setting_existed_still_counts():
    old = record(small())
    del old.settings["server"]["lr_decay"]
    assert find_records([old], small()) == [old]


def test_of_one_seed_the_last_run_counts():
    one, two, three = (record(small(f"seed={seed}"), final=final) for seed, final in ((2, 0.1), (1, 0.2), (2, 0.3)))
    assert find_records([one, two, three], small()) == [two, three]


def test_samples_are_those_of_the_data():
    assert SAMPLES["digits"] == len(load("digits").train)


def test_steps_and_times_by_hand():
    # 1442 digits on 6 clients: 240 samples and a third, 4 batches of 64; 3 clients, 3 rounds.
    assert count_steps(small()) == 36
    assert count_steps(small("data.validation=0.5")) == 18  # 120 samples a client, not 240
    assert count_steps(small("training.steps=7", "data.name=text")) == 63
    assert count_steps(small("data.name=text")) is None
    known = [record(small("method.name=heterofl"), seconds=6.0, steps=36), record(small(), seconds=18.0, steps=36)]
    assert estimate_seconds(small("rounds=6"), known) == pytest.approx(36.0), "like the run of the same method"
    assert estimate_seconds(small("method.name=fedbrb"), known) == pytest.approx(6.0), "else the faster of both"
    assert estimate_seconds(small("model.name=cnn", "model.options={}"), known) is None
    wide = small("devices.capacities=a1", "training.batch_size=8", "method.name=fedavg")
    pack = [replace(record(small("devices.capacities=a0-e1"), seconds=1.0, steps=36), packed=6)]
    assert estimate_seconds(wide, pack) is None, "a pack says nothing about other sizes"
    other = small("devices.capacities=a0-e1", "training.batch_size=32")
    assert estimate_seconds(other, pack) == pytest.approx(count_steps(other) / 36), "but about other batch sizes"
    batches = [record(small(f"training.batch_size={n}"), seconds=t, steps=36) for n, t in ((4, 1.0), (32, 8.0))]
    assert estimate_seconds(small("devices.capacities=a1"), batches) == pytest.approx(8.0), "64 is nearer to 32"
    assert estimate_seconds(small("devices.capacities=a1"), [*batches, *known]) == pytest.approx(6.0), "equal"


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
    assert column.pairs[0].settled.values == pytest.approx((7.5, 7.5))
    (column,) = find_columns([one, long("b", 60.0, 0.0, range(20, 240, 20))])
    assert column.pairs[0].settled is None, "they share six"


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


def test_what_remains_is_counted_once_and_told_with_its_time():
    one, other = small(), small("method.name=heterofl")
    records = [record(one, seconds=360.0, steps=36)]  # 36 steps a run: ten seconds a step
    done, missing = cell("a", 70.0, 60.0, settings=one), cell("b", 70.0, settings=other)
    tables = {"t": [done, missing], "u": [missing]}
    forecast = Forecast(records)
    assert count_remaining(tables, forecast, 1) == "1 run, about 6 min"
    assert count_remaining(tables, forecast, 3) == "5 runs, about 30 min"  # two of one, three of the other
    _, table, total = remaining_texts(tables, forecast)
    assert table.splitlines()[2:] == ["| `t` | 2 | 1 | 6 min | 30 min |", "| `u` | 1 | 1 | 6 min | 18 min |"]
    assert total.endswith("to have one seed of each: 1 run, about 6 min; 3 seeds of each: 5 runs, about 30 min.")


def test_a_recipe_that_was_started_tells_its_pace(tmp_path):
    settings = small("data.name=text", "rounds=60")
    tables = {"t": [cell("a", None, settings=settings)]}
    assert count_remaining(tables, Forecast([]), 1) == "1 run, for which no time is known yet"
    start = Start("t", "a", 2, 1.2345, 4.0, "a processor", "2025-01-01", "cuda", "0.1")
    assert count_remaining(tables, Forecast([], [start]), 1) == "1 run, about 2 min"  # 60 rounds of 2 s
    (tmp_path / "started.json").write_text(json.dumps([asdict(start)]))
    assert read_started(tmp_path) == [start]
    _, table, last = started_texts(tables, [start])
    assert table.splitlines()[2] == "| `t` | a | 2 | 1.234 | 4 s | a processor | 2025-01-01, fedwidth 0.1 |"
    assert last == "Every recipe has been run or started."
    assert list(started_texts(tables, [])) == ["Neither run nor started yet: `t`."]


def test_times_on_a_cpu_are_marked_and_in_no_sum():
    known, text = small(), small("data.name=text", "rounds=60", "model.name=transformer", "model.options={}")
    records = [record(known, seconds=360.0, steps=36)]
    tables = {"t": [cell("a", None, settings=text)], "u": [cell("b", 70.0, settings=small("method.name=heterofl"))]}
    slow = Start("t", "a", 1, 1.0, 60.0, "a processor", "2025-01-01")
    forecast = Forecast(records, [slow])
    assert count_remaining(tables, forecast, 1) == "2 runs, about 6 min, not counting 1 run timed on a CPU alone"
    _, table, _ = remaining_texts(tables, forecast)
    assert table.splitlines()[2:] == [
        "| `t` | 1 | 1 | 60 min on a CPU | 3.0 h on a CPU |",
        "| `u` | 1 | 1 | 6 min | 18 min |",
    ]
    tables["v"] = [cell("c", None, settings=replace(text, rounds=61))]
    left_out = "not counting 1 run timed on a CPU alone and 1 run of unknown length"
    assert count_remaining(tables, forecast, 1) == f"3 runs, about 6 min, {left_out}"
    quick = replace(slow, seconds=6.0, device="cuda")
    assert count_remaining(tables, Forecast(records, [slow, quick]), 1).startswith(
        "3 runs, about 12 min, not counting 1 run of"
    )
    alone = {"t": tables["t"]}
    assert count_remaining(alone, Forecast([], [slow]), 1) == "1 run, for which no time but that on a CPU is known yet"


def test_recipes_that_lack_the_stack_overflow_data_say_so():
    tables = {"with-stackoverflow": [cell("a", 20.0, settings=small("data.name=stackoverflow"))]}
    (said,) = started_texts(tables, [])
    assert said.startswith("Neither run nor started yet: `with-stackoverflow`. Those with `stackoverflow` in")
    assert "was not available; `fedrolex/next-word-ubuntu` stands in for it." in said
    done = Start("with-stackoverflow", "a", 2, 1.0, 4.0, "a processor", "2025-01-01")
    assert "available" not in "".join(started_texts(tables, [done]))


def test_runs_that_no_table_shows_are_listed_with_the_published_number():
    done, missing = cell("done", 70.0, 60.0), cell("missing", 65.0, spread=0.5)
    begun = replace(cell("begun", 64.0), unfinished=done.records)
    tables = {
        "large": [done, *[missing] * 11, begun],
        "small": [done, missing],  # its own table shows what is missing
        "whole": [done],
        "new": [missing, cell("other", None)],
        "plot": [cell("x", None), cell("y", None)],
    }
    title, _, large, new, plot = unrun_texts(tables)
    assert title == "## Not run"
    assert large.splitlines()[:6] == [
        '<details markdown="1">',
        "<summary><code>large</code>: 11 of 13 runs</summary>",
        "",
        "| run | paper |",
        "| --- | ---: |",
        "| missing | 65.00 ± 0.50 |",
    ]
    assert large.endswith("|\n\n</details>")
    assert "done" not in large
    assert "begun" not in large
    assert "| missing | 65.00 ± 0.50 |\n| other | – |" in new
    assert "No numbers are published: `x`, `y`." in plot
    assert list(unrun_texts({"whole": [done]})) == []


def test_a_start_replaces_the_same_one_and_is_written_whole(tmp_path, monkeypatch):
    old = [Start(name, "a", 2, 1.0, 4.0, "a processor", "2025-01-01") for name in ("t", "u")]
    for each in old:
        write_started(tmp_path / "new", each)
    assert read_started(tmp_path / "new") == old
    new = replace(old[0], seconds=3.0, version="0.1")
    on_gpu = replace(old[0], device="cuda")
    for each in (on_gpu, new):
        write_started(tmp_path / "new", each)
    assert read_started(tmp_path / "new") == [on_gpu, new, old[1]]
    before = (tmp_path / "new" / "started.json").read_bytes()
    monkeypatch.setattr("os.fsync", lambda file: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(StateError, match="the previous one is unharmed"):
        write_started(tmp_path / "new", replace(new, label="c"))
    assert (tmp_path / "new" / "started.json").read_bytes() == before
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [".lock", "started.json"]


@pytest.mark.parametrize("text", ["{", '[{"recipe": "t"}]', '["t"]', "3"])
def test_a_damaged_list_of_started_runs_is_refused_in_one_line(tmp_path, text):
    assert read_started(tmp_path) == []
    (tmp_path / "started.json").write_text(text)
    with pytest.raises(StateError, match="must be a list of tables, each with recipe, label"):
        read_started(tmp_path)


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
    from fedwidth.config.read import read_settings

    records = [made for made in read_all(ROOT / "results") if not made.recipe.startswith("queue/")]
    recipes = {name: {run.label: run for run in read_settings(name).runs} for name in {r.recipe for r in records}}
    for made in records:
        run = recipes[made.recipe][made.label]
        assert find_records([made], run.settings) == [made], f"{made.recipe} {made.label}: the recipe has changed"
        assert made.evaluations[-1][0] == made.rounds == run.settings.rounds
        assert made.final_accuracy == pytest.approx(made.evaluations[-1][1], abs=1e-6)
        assert made.best_accuracy == pytest.approx(max(each[1] for each in made.evaluations), abs=1e-6)
        assert made.version
        assert not made.settings["data"]["root"], "no path of a machine"
