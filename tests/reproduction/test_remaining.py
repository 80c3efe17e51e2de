"""What of the tables remains to be run, how long that will take, and which recipes were only started."""

import json
from dataclasses import asdict, replace

from reproduction.remaining import Forecast, count_remaining, remaining_texts, unrun_texts
from reproduction.started import started_texts

from fedwidth.reproduce.started import StartedRun, read_started
from recorded_runs import cell, record
from small_runs import small


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
    start = StartedRun("t", "a", 2, 1.2345, 4.0, "a processor", "2025-01-01", "cuda", "0.1")
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
    slow = StartedRun("t", "a", 1, 1.0, 60.0, "a processor", "2025-01-01")
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
    done = StartedRun("with-stackoverflow", "a", 2, 1.0, 4.0, "a processor", "2025-01-01")
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
