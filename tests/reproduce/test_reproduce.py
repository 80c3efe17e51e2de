"""`reproduce`: what is recorded is skipped, what was stopped goes on, and nothing runs past its time."""

import json
from itertools import count

import pytest

from fedwidth.cli.entry import run_command
from fedwidth.config.read import read_settings
from fedwidth.errors import OptionError, StateError
from fedwidth.reproduce.records import read_records
from fedwidth.reproduce.running import reproduce
from fedwidth.reproduce.table_runs import list_table_runs
from fedwidth.run.folder import locked
from two_runs import stop_after, write_two_runs


@pytest.fixture
def table(tmp_path):
    return write_two_runs(tmp_path)


@pytest.fixture
def go(table, tmp_path):
    said = []

    def call(**more):
        given = {"results": tmp_path / "results", "work": tmp_path / "work", "say": said.append, **more}
        return reproduce([table], **given)

    call.said = said
    call.records = lambda: read_records(tmp_path / "results", "small")
    return call


def seen(outcome):
    return [(record.label, record.seed) for record in outcome.done]


def test_all_runs_with_the_first_seed_come_before_the_second(table, tmp_path):
    runs = list_table_runs([table], only=[], seeds=[3, 1], changes=[], work=tmp_path)
    assert [(run.label, run.settings.seed) for run in runs] == [
        ("fedrolex", 3),
        ("heterofl", 3),
        ("fedrolex", 1),
        ("heterofl", 1),
    ]
    assert len({run.folder for run in runs}) == 4


def test_checkpoints_are_the_settings_own_and_other_settings_have_other_folders(table, tmp_path):
    def first(*changes):
        return list_table_runs([table], only=["fedrolex"], seeds=[], changes=changes, work=tmp_path)[0]

    assert first("rounds=2500").settings.checkpoint_every == 0
    assert first("rounds=2500", "checkpoint_every=7").settings.checkpoint_every == 7
    assert first("checkpoint_every=7", "checkpoint_seconds=5").folder == first().folder
    assert first("training.lr=0.3").folder != first().folder
    assert first("data.root=anywhere").folder == first().folder


def test_what_is_recorded_is_skipped(go):
    assert seen(go(only=["heterofl"])) == [("heterofl", 1)]
    second = go(seeds=[1, 2])
    assert (seen(second), second.skipped) == ([("fedrolex", 1), ("fedrolex", 2), ("heterofl", 2)], 1)
    third = go(seeds=[1, 2], changes=["precision=float32", "evaluation.every=3"])
    assert (third.done, third.skipped, third.remaining) == ((), 4, ())
    assert [r.rounds for r in go.records()] == [8] * 4
    assert "nothing is left to do" in go.said[-1]
    assert go.said[0].startswith("1 run, 0 recorded; ")
    assert any(text.startswith("1 run finished, 0 remaining; ") for text in go.said)
    assert seen(go(changes=["training.lr=0.2"], only=["heterofl"])) == [("heterofl", 1)], "another experiment"


def test_a_stopped_run_goes_on_and_ends_as_if_it_had_not_been_stopped(go, tmp_path):
    first = go(stop=stop_after(5))
    assert (first.done, [job.label for job in first.remaining]) == ((), ["fedrolex", "heterofl"])
    (part,) = read_records(tmp_path / "results" / "unfinished", "small")
    assert part.evaluations[-1][0] == 4
    assert go.records() == []
    assert seen(go()) == [("fedrolex", 1), ("heterofl", 1)]
    rounds = [text for text in go.said if "fedrolex" in text and ": round " in text]
    assert len(rounds) == 4, "none of its four evaluations was repeated"
    whole = go(results=tmp_path / "others", work=tmp_path / "elsewhere")
    assert [r.evaluations for r in whole.done] == [r.evaluations for r in go.records()]


def test_when_the_minutes_are_over_the_run_that_trains_is_saved_and_no_other_begins(go):
    seconds = count(1)
    outcome = go(seeds=[1, 2], max_minutes=0.1, clock=lambda: float(next(seconds)))
    assert outcome.done == ()
    assert len(outcome.remaining) == 4
    assert "it goes on from there the next time" in go.said[-2]
    assert "4 remain" in go.said[-1]


def test_time_left_is_estimated_from_what_ran(go):
    assert go(only=["fedrolex"], stop=stop_after(0)).seconds_left is None, "nothing has run yet"
    (done,) = go(only=["fedrolex"]).done
    left = go(only=["fedrolex"], seeds=[1, 2, 3], stop=stop_after(0)).seconds_left
    # Two runs of 6 clients with 4 batches each; the recorded run says what a step took.
    assert left == pytest.approx(2 * done.seconds, rel=0.01)


def test_the_command(table, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["reproduce", table, "--only", "fedrolex", "--set", "rounds=2", "--seeds", "5", "--max-minutes", "9"]
    assert run_command(arguments) == 0
    assert "fedrolex, seed 5: round 2 of 2" in capsys.readouterr().out
    (record,) = read_records(tmp_path / "results", "small")
    assert (record.seed, record.rounds, record.changes) == (5, 2, ["rounds=2"])
    assert run_command(["reproduce", table, "--max-minutes", "0"]) == 2
    assert run_command(["reproduce", table, "--only", "fedrolx"]) == 2
    assert "did you mean 'fedrolex'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["--only", "fedrolx"],
            "unknown run 'fedrolx' (did you mean 'fedrolex'?); allowed: fedrolex, heterofl; * stands",
        ),
        (["--start", "0"], "--start must be a whole number from 1 on, not 0"),
        (["--start", "8"], "--start must be less than the 8 rounds of small fedrolex, seed 1"),
        (["--start", "2", "--packed"], "leave out --seeds, --packed and --max-minutes"),
        (["--start", "2", "--seeds", "1,2"], "leave out --seeds, --packed and --max-minutes"),
        (["--start", "2", "--set", "device=cuda"], "PyTorch finds no GPU on this machine"),
        (["--work", "small.toml"], "small.toml is a file; give a folder as --work"),
        (["--results", "small.toml"], "small.toml is a file; give a folder as --results"),
        (["--results", "small.toml/deep"], "cannot write small.toml/deep/.lock: "),
        (["--start", "2", "--results", "small.toml/deep"], "cannot write small.toml/deep/started.json: "),
        (["--set", "trainin.lr=1"], "unknown key 'trainin' (did you mean 'training'?)"),
        (["--set", "training.lr=fast"], "training.lr"),
        (["--set", "engine=cuda"], "engine is cuda, but device is cpu"),
        (["--set", "device=cuda"], "PyTorch finds no GPU on this machine"),
        (["--set", "engine=cuda", "--set", "device=cuda"], "PyTorch finds no GPU on this machine"),
    ],
)
def test_what_cannot_be_run_is_one_line_and_leaves_nothing(table, tmp_path, capsys, monkeypatch, given, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    before = sorted(tmp_path.rglob("*"))
    assert run_command(["reproduce", table, *given]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert said in printed.err
    assert sorted(tmp_path.rglob("*")) == before


def test_results_that_cannot_be_written_are_refused_before_training(go, tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "unfinished").write_text("")
    with pytest.raises(StateError, match="^cannot write .*unfinished"):
        go()
    assert not go.said
    assert not (tmp_path / "work").exists()


def test_results_on_a_disk_that_is_read_only_are_refused_before_training(go, tmp_path, monkeypatch):
    monkeypatch.setattr("fedwidth.files.os.access", lambda *_: False)
    with pytest.raises(StateError, match=r"^cannot write .*\.lock: nothing can be written to "):
        go()
    assert not (tmp_path / "work").exists()


def test_results_that_are_read_only_are_enough_where_nothing_is_left_to_run(go, monkeypatch):
    go(only=["heterofl"])
    monkeypatch.setattr("fedwidth.files.os.access", lambda *_: False)
    assert go(only=["heterofl"]).skipped == 1


def test_packed_runs_are_recorded_as_runs_one_by_one_are(go, tmp_path):
    single = go(seeds=[1, 2], changes=["engine=vectorised"], results=tmp_path / "single", work=tmp_path / "alone")
    stopped = go(seeds=[1, 2], changes=["engine=auto"], packed=True, stop=stop_after(4))
    assert (stopped.done, len(stopped.remaining)) == ((), 4)
    assert "small, 4 runs as one batch: stopped after round 4 of 8" in go.said[-2]
    packed = go(seeds=[1, 2], changes=["engine=auto"], packed=True)
    by_seed = sorted(packed.done, key=lambda record: record.seed)
    assert [(r.label, r.seed, r.packed, r.same_as) for r in by_seed] == [
        ("fedrolex", 1, 4, ""),
        ("heterofl", 1, 4, ""),
        ("fedrolex", 2, 4, ""),
        ("heterofl", 2, 4, ""),
    ]
    for one, other in zip(by_seed, single.done, strict=True):
        assert one.evaluations == [pytest.approx(row, abs=1e-5) for row in other.evaluations]
    assert [r.steps for r in by_seed] == [r.steps for r in single.done]
    assert go.records() == list(packed.done), "what is written is what is read"
    assert go(seeds=[1, 2], packed=True, changes=["engine=auto"]).skipped == 4


def test_a_run_that_is_another_one_is_recorded_as_such(go):
    whole = ["engine=auto", "devices.capacities=1:1"]
    records = go(changes=whole, packed=True).done
    assert [(r.label, r.same_as) for r in records] == [("fedrolex", ""), ("heterofl", "small fedrolex, seed 1")]
    assert records[0].evaluations == records[1].evaluations
    go(changes=["engine=serial", "rounds=3"], packed=False)
    with pytest.raises(OptionError, match="need engine auto, vectorised or cuda, not serial"):
        go(packed=True)


def said_of_engines(go):
    return [text for text in go.said if "engine: " in text]


def test_every_run_says_once_what_trains_it_and_the_record_keeps_it(go, tmp_path):
    auto = ["engine=auto", "training.lr=0.2"]
    first = go(changes=auto, stop=stop_after(3))
    assert first.done == ()
    (part,) = read_records(tmp_path / "results" / "unfinished", "small")
    done = go(changes=auto).done
    (taken,) = {record.engine for record in done} | {part.engine}
    assert taken == "vectorised", "the settled name, not auto"
    told = said_of_engines(go)
    assert len(told) == 3, "twice for the run that was stopped"
    assert all(f"engine: {taken} (a step of a client is small" in text for text in told)
    assert {record.settings["engine"] for record in done} == {"auto"}, "the settings stay as they were asked for"
    assert go(changes=["engine=serial", "training.lr=0.2"]).skipped == 2, "whatever engine: the same experiment"
    go(only=["heterofl"])
    assert said_of_engines(go)[3:] == ["small heterofl, seed 1: engine: serial (as set)"]
    assert go.records()[-1].engine == "serial"


def test_a_pack_says_how_its_clients_train(go):
    records = go(changes=["engine=auto"], packed=True).done
    assert said_of_engines(go) == ["small, 2 runs as one batch: engine: vectorised (their clients stacked by size)"]
    assert [record.engine for record in records] == ["vectorised"] * 2


def test_a_record_without_an_engine_is_read_and_counts_as_done(go, tmp_path):
    go()
    path = tmp_path / "results" / "small.jsonl"
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    assert [line.pop("engine") for line in lines] == ["serial"] * 2
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [record.engine for record in go.records()] == ["", ""]
    assert go().skipped == 2


@pytest.mark.parametrize("packed", [False, True])
def test_a_second_call_on_the_same_work_is_told_of_the_right_option(go, table, tmp_path, packed):
    changes = ["engine=auto"]
    (job,) = list_table_runs([table], only=["fedrolex"], seeds=[], changes=changes, work=tmp_path / "work")
    with locked(job.folder), pytest.raises(OptionError, match="wait for it or give another --work") as refused:
        go(only=["fedrolex"], changes=changes, packed=packed)
    assert "--out" not in str(refused.value)
    assert "small fedrolex, seed 1" in str(refused.value)


def test_of_many_runs_only_the_nearest_are_named():
    recipe = read_settings("thesis/table3-1")
    with pytest.raises(OptionError) as refused:
        recipe.only("2-classes/fedcovr/0.25")
    text = str(refused.value)
    assert "did you mean '2-classes/fedcover/0.25'?" in text
    assert "the nearest of 125 allowed: 2-classes/fedcover/0.25, " in text
    assert text.endswith("; * stands for any characters")
    assert text.count("-classes/") == 7, "what was given, what was meant, and five"
    with pytest.raises(OptionError, match="the nearest of 125 allowed: "):
        recipe.only("nope")
    with pytest.raises(OptionError, match="the nearest of .*fedrolex/table3-cifar10-high.*`fedwidth run --recipes`"):
        read_settings("fedrolex/table3-cifar10-hi")


def test_unknown_tables_and_labels_are_refused_before_anything_runs(table, tmp_path):
    with pytest.raises(OptionError, match="unknown recipe"):
        reproduce([table, "fedrolex/table33"], results=tmp_path / "r", work=tmp_path / "w", say=lambda text: None)
    assert not (tmp_path / "w").exists()
    assert read_settings(table).labels == ("fedrolex", "heterofl")


def test_a_run_that_does_not_look_at_the_test_set_is_recorded_by_its_validation_accuracy(go, tmp_path):
    changes = ["data.validation=0.2", "evaluation.test=false"]
    (found,) = go(only=["fedrolex"], changes=changes).done
    assert found.samples == "validation"
    assert found.local_accuracy is None
    (metrics,) = (tmp_path / "work").rglob("metrics.jsonl")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    measured = [line for line in lines if "validation_accuracy" in line]
    assert found.final_accuracy == measured[-1]["validation_accuracy"]
    assert not any("global_accuracy" in line for line in lines)
