"""`reproduce --start`: a few rounds of a run, noted in started.json and nowhere else."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import fedwidth
from fedwidth.cli.entry import run_command
from fedwidth.errors import OptionError, StateError
from fedwidth.reproduce.start import start_tables
from fedwidth.reproduce.started import StartedRun, read_started, write_started
from two_runs import stop_after, write_two_runs


@pytest.fixture
def table(tmp_path):
    return write_two_runs(tmp_path)


def test_a_start_replaces_the_same_one_and_is_written_whole(tmp_path, monkeypatch):
    old = [StartedRun(name, "a", 2, 1.0, 4.0, "a processor", "2025-01-01") for name in ("t", "u")]
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


def test_a_start_notes_the_first_run_and_nothing_else(table, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    same = {"label": "fedrolex", "rounds": 1, "train_loss": None, "seconds": 1.0, "hardware": "h", "date": "d"}
    older = [{"recipe": "small", **same}, {"recipe": "other", **same}, {"recipe": "small", "device": "cuda", **same}]
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "started.json").write_text(json.dumps(older))
    recipe = Path(table)
    recipe.write_text(recipe.read_text().replace("[training]", '[training]\nschedule = "cosine"'))
    assert run_command(["reproduce", table, "--start", "3"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "small fedrolex, seed 1: engine: serial (as set)"
    assert "small fedrolex, seed 1: 3 rounds in " in printed[1]
    other, on_gpu, mine = read_started(tmp_path / "results")
    assert on_gpu.device == "cuda", "what is known of another kind of device stays"
    assert (other.recipe, other.version) == ("other", ""), "an older entry without a version stays"
    assert (mine.recipe, mine.label, mine.rounds, mine.device) == ("small", "fedrolex", 3, "cpu")
    assert mine.hardware
    assert mine.date
    assert mine.version == fedwidth.__version__
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".lock", "results", "small.toml", "started.json"]
    # The loss is that of the whole run's third round: by its schedule, not by one of three rounds.
    assert run_command(["reproduce", table, "--only", "fedrolex", "--work", "work"]) == 0
    (metrics,) = (tmp_path / "work").rglob("metrics.jsonl")
    third = json.loads(metrics.read_text().splitlines()[2])
    assert mine.train_loss == round(third["train_loss"], 4)


def test_a_start_of_several_runs_notes_each(table, tmp_path):
    given = {"only": ["*"], "results": tmp_path / "r", "say": lambda _: None}
    for _ in range(2):
        assert [(each.recipe, each.label) for each in start_tables([table], 1, **given)] == [
            ("small", "fedrolex"),
            ("small", "heterofl"),
        ]
        assert [each.label for each in read_started(tmp_path / "r")] == ["fedrolex", "heterofl"]


def test_a_start_that_is_stopped_is_not_noted(table, tmp_path):
    said = []
    assert start_tables([table], 5, results=tmp_path / "r", say=said.append, stop=stop_after(2)) == []
    assert said[-1] == "small fedrolex, seed 1: stopped before round 5; not noted"
    assert not (tmp_path / "r").exists()


def test_a_stop_between_two_starts_is_heard(table, tmp_path):
    said = []
    found = start_tables([table], 1, only=["*"], results=tmp_path / "r", say=said.append, stop=lambda: len(said) > 1)
    assert [each.label for each in found] == ["fedrolex"]


def test_a_start_of_another_experiment_is_refused(table, tmp_path):
    with pytest.raises(OptionError, match="--start notes recipes as they are"):
        start_tables([table], 1, changes=["training.lr=0.5"], results=tmp_path, say=pytest.fail)


def test_a_damaged_list_is_refused_before_the_start(table, tmp_path):
    (tmp_path / "started.json").write_text("{")
    with pytest.raises(StateError, match="must be a list of tables"):
        start_tables([table], 1, results=tmp_path, say=pytest.fail)
