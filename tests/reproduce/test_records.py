"""Recorded runs: written whole, read despite half lines, and known by their experiment."""

import json
from dataclasses import asdict

import pytest

from fedwidth.analysis.experiment_key import experiment_key
from fedwidth.errors import StateError
from fedwidth.reproduce.records import append_record, by_experiment, make_record, path_of, read_all, read_records
from recorded_runs import record
from small_runs import small


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


def test_a_record_says_what_was_spent_until_each_evaluation():
    costs = {"bytes_down": 10, "bytes_up": 5, "macs": 7, "seconds": 1.0}
    lines = [{"round": number, **costs} for number in (1, 2, 3)]
    lines[1]["global_accuracy"] = 0.25
    lines[2] |= {"global_accuracy": 0.5, "capacity_accuracy": {"1.0": 0.5, "0.5": 0.25}}
    made = make_record("table", "run", small(), changes=[], metrics=lines, steps=1)
    assert made.spent == [[30, 14], [45, 21]]
    assert made.capacity_accuracy == {"1.0": 0.5, "0.5": 0.25}
    del lines[0]["macs"]
    assert make_record("table", "run", small(), changes=[], metrics=lines, steps=1).spent is None


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("settings", 5),
        ("seed", [1]),
        ("rounds", "x"),
        ("final_accuracy", None),
        ("seconds", float("nan")),
        ("seed", True),
    ],
)
def test_a_record_with_a_value_of_another_kind_is_refused(name, value, tmp_path):
    line = asdict(record(small())) | {name: value}
    (tmp_path / "table.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(StateError, match=f"line 1 of .* is no run of fedwidth: its {name} is"):
        read_all(tmp_path)


def test_a_folder_in_place_of_records_is_refused(tmp_path):
    (tmp_path / "x.jsonl").mkdir()
    with pytest.raises(StateError, match="cannot read .*x.jsonl"):
        read_all(tmp_path)


def test_unfinished_runs_are_kept_apart(tmp_path):
    append_record(tmp_path / "unfinished", record(small()))
    assert read_all(tmp_path) == []
    assert len(read_all(tmp_path / "unfinished")) == 1


@pytest.mark.parametrize(
    "change", ["precision=bf16", "evaluation.every=1", "data.root=elsewhere", "workers=3", "seed=2"]
)
def test_where_and_how_often_do_not_make_another_experiment(change):
    assert experiment_key(asdict(small(change))) == experiment_key(asdict(small()))


@pytest.mark.parametrize("change", ["training.lr=0.2", "rounds=4", "method.name=heterofl", "evaluation.norm=batch"])
def test_everything_else_does(change):
    assert experiment_key(asdict(small(change))) != experiment_key(asdict(small()))


def test_a_run_recorded_before_a_setting_existed_still_counts():
    old = record(small())
    del old.settings["server"]["lr_decay"]
    assert by_experiment([old]) == {experiment_key(asdict(small())): [old]}


def test_of_one_seed_the_last_run_counts():
    one, two, three = (record(small(f"seed={seed}"), final=final) for seed, final in ((2, 0.1), (1, 0.2), (2, 0.3)))
    assert list(by_experiment([one, two, three]).values()) == [[two, three]]


@pytest.mark.parametrize(("given", "recorded"), [("tf32", "float32"), ("float32", "float32"), ("bf16", "bf16")])
def test_a_run_on_a_processor_records_its_arithmetic(given, recorded):
    assert record(small(f"precision={given}")).precision == recorded
