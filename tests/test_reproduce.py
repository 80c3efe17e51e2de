"""Job lists: what is recorded is skipped, what was stopped goes on, and nothing runs past its time."""

import re

import pytest

from fedwidth import reproduce as module
from fedwidth.cli import run_command
from fedwidth.config import read_settings
from fedwidth.errors import OptionError
from fedwidth.reproduce import reproduce
from fedwidth.reproduce_jobs import list_jobs
from fedwidth.results import read_records
from small_runs import write_recipe


@pytest.fixture
def table(tmp_path):
    path = write_recipe(tmp_path)
    text = (tmp_path / "small.toml").read_text().replace("rounds = 3", "rounds = 8")
    (tmp_path / "small.toml").write_text(text + '[[compare]]\nlabel = "heterofl"\nmethod.name = "heterofl"\n')
    return path


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


def after(calls):
    """A stop signal that comes after so many rounds."""
    left = [calls]

    def stop():
        left[0] -= 1
        return left[0] < 0

    return stop


def test_all_runs_with_the_first_seed_come_before_the_second(table, tmp_path):
    jobs = list_jobs([table], only=[], seeds=[3, 1], changes=[], work=tmp_path)
    assert [(job.label, job.settings.seed) for job in jobs] == [
        ("fedrolex", 3),
        ("heterofl", 3),
        ("fedrolex", 1),
        ("heterofl", 1),
    ]
    assert len({job.folder for job in jobs}) == 4


def test_checkpoints_are_rare_in_long_runs_and_other_settings_have_other_folders(table, tmp_path):
    def first(*changes):
        return list_jobs([table], only=["fedrolex"], seeds=[], changes=changes, work=tmp_path)[0]

    assert first("rounds=2500").settings.checkpoint_every == 100
    assert first("rounds=2500", "checkpoint_every=7").settings.checkpoint_every == 7
    assert first().settings.checkpoint_every == 1
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
    assert seen(go(changes=["training.lr=0.2"], only=["heterofl"])) == [("heterofl", 1)], "another experiment"


def test_a_stopped_run_goes_on_and_ends_as_if_it_had_not_been_stopped(go, tmp_path):
    first = go(stop=after(5))
    assert (first.done, [job.label for job in first.remaining]) == ((), ["fedrolex", "heterofl"])
    (part,) = read_records(tmp_path / "results" / "unfinished", "small")
    assert part.evaluations[-1][0] == 4
    assert go.records() == []
    assert seen(go()) == [("fedrolex", 1), ("heterofl", 1)]
    rounds = [text for text in go.said if "fedrolex" in text and ": round " in text]
    assert len(rounds) == 4, "none of its four evaluations was repeated"
    whole = go(results=tmp_path / "others", work=tmp_path / "elsewhere")
    assert [r.evaluations for r in whole.done] == [r.evaluations for r in go.records()]


def test_when_the_minutes_are_over_the_run_at_hand_is_saved_and_no_other_begins(go, monkeypatch):
    class Clock:
        now = 0.0

        def monotonic(self):
            self.now += 1.0
            return self.now

    monkeypatch.setattr(module, "time", Clock())
    outcome = go(seeds=[1, 2], max_minutes=0.1)
    assert outcome.done == ()
    assert len(outcome.remaining) == 4
    assert "it goes on from there the next time" in go.said[-2]
    assert "4 remain" in go.said[-1]


def test_time_left_is_estimated_from_what_ran(go):
    assert go(only=["fedrolex"], stop=after(0)).seconds_left is None, "nothing has run yet"
    (done,) = go(only=["fedrolex"]).done
    left = go(only=["fedrolex"], seeds=[1, 2, 3], stop=after(0)).seconds_left
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
        (["--only", "fedrolx"], "unknown run 'fedrolx' (did you mean 'fedrolex'?); allowed: fedrolex, heterofl"),
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


def test_packed_runs_are_recorded_as_runs_one_by_one_are(go, tmp_path):
    single = go(seeds=[1, 2], changes=["engine=vectorised"], results=tmp_path / "single", work=tmp_path / "alone")
    stopped = go(seeds=[1, 2], changes=["engine=auto"], packed=True, stop=after(4))
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


def test_the_page_of_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fedwidth.results_page.coverage", lambda results: FOUND)
    assert run_command(["results", "--results", str(tmp_path), "--out", str(tmp_path / "page.md")]) == 0
    page = (tmp_path / "page.md").read_text()
    assert re.search(r"- 0 of \d{4} cells with a published accuracy", page)
    assert "| `thesis/table3-1` | 125 | 125 | not known |" in page


SHARES = dict.fromkeys(("1/2", "1/4", "1/8", "1/16"), 0.5)
METHODS = dict.fromkeys(("heterofl", "fedrolex", "feddropout", "fedbrb"), SHARES)
FOUND = {"rounds": 512, "convolutions": METHODS, "512x512": METHODS}


def test_unknown_tables_and_labels_are_refused_before_anything_runs(table, tmp_path):
    with pytest.raises(OptionError, match="unknown recipe"):
        reproduce([table, "fedrolex/table33"], results=tmp_path / "r", work=tmp_path / "w", say=lambda text: None)
    assert not (tmp_path / "w").exists()
    assert read_settings(table).labels == ("fedrolex", "heterofl")
