"""The measuring scripts start: they use the library from within, where names change."""

import json
import os
import re
import runpy
import sys
from functools import cache
from pathlib import Path

import pytest

from fedwidth.run import checkpoint

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def start(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    monkeypatch.delenv("PYTHONPATH", raising=False)

    def run(script, *given):
        monkeypatch.setattr(sys, "argv", [str(script), *given])
        return runpy.run_path(str(script), run_name="__main__")

    return run


@pytest.mark.parametrize("script", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_every_script_starts(start, script, capsys):
    try:
        with pytest.raises(SystemExit) as ended:
            start(script, "--help")
    except ModuleNotFoundError as error:
        if error.name not in ("ray", "flwr", "pfl", "cryptography"):
            raise
        pytest.skip(f"needs {error.name}")
    assert ended.value.code == 0
    assert "usage" in capsys.readouterr().out


HANGS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print(child.pid, file=open(sys.argv[1], "w"), flush=True)
time.sleep(60)
"""


def test_a_peer_that_hangs_is_ended_with_all_it_started(tmp_path):
    watched = runpy.run_path(str(FOLDER / "peers" / "watched.py"))
    noted = tmp_path / "child"
    with pytest.raises(watched["Failed"], match="did not end within 1.5 s"):
        watched["run_watched"]([sys.executable, "-c", HANGS, str(noted)], os.environ, 1.5)
    child = Path("/proc") / noted.read_text().strip()
    assert not child.exists() or ") Z " in (child / "stat").read_text(), "gone, or waiting for its end to be noted"


def test_a_peer_that_fails_says_its_last_line():
    watched = runpy.run_path(str(FOLDER / "peers" / "watched.py"))
    with pytest.raises(watched["Failed"], match="ended with 1: ValueError: no"):
        watched["run_watched"]([sys.executable, "-c", "raise ValueError('no')"], os.environ, 30)
    assert watched["run_watched"]([sys.executable, "-c", "import time; time.sleep(1.5)"], os.environ, 30) > 1, (
        "it is looked at once a second"
    )


def test_packs_and_single_runs_side_by_side(start, capsys):
    start(FOLDER / "packed.py", "--device", "cpu", "--rounds", "1", "--runs", "2", "--set", "training.steps=1")
    assert "largest difference of weights 0.0e+00" in capsys.readouterr().out


def test_lanes_beside_one_lane(start, capsys):
    small = ["model.name=cnn", "model.options={widths=[4,8]}", "training.steps=1", "data.validation=0"]
    changes = [part for change in small for part in ("--set", change)]
    options = ["--device", "cpu", "--methods", "fedecover", "--rounds", "2", "--turns", "1", "--samples", "1800"]
    start(FOLDER / "lanes.py", "--child", *options, *changes)
    found = json.loads(capsys.readouterr().out)
    assert found["same"]
    assert list(found["ms"]) == ["3", "1"]


@pytest.mark.parametrize("what", ["norms", "sizes"])
def test_ways_of_slots_turn_by_turn(start, capsys, what):
    """On a processor both ways are one, bit for bit."""
    small = ["model.name=cnn", "model.options={widths=[4,8]}", "training.steps=1"]
    changes = [part for change in small for part in ("--set", change)]
    start(FOLDER / "slots.py", what, "--device", "cpu", "--rounds", "2", "--turns", "1", "--samples", "6000", *changes)
    said = capsys.readouterr().out
    assert said.count("ms a round") == 2
    assert "largest difference of weights 0.0e+00" in said


def test_data_on_disk_beside_the_same_in_memory(start, capsys, tmp_path):
    """Two processes in turns; whether reading gives the same bits is what must not change."""
    start(FOLDER / "on_disk.py", "--folder", str(tmp_path), "--clients", "20", "--gigabytes", "0.0005", "--rounds", "2")
    out = capsys.readouterr().out
    assert "20 clients of 8 pictures, 0.00 GB" in out
    assert re.search(r"disk: ready after .* peak anonymous memory \d\.\d\d GB", out)
    assert re.search(r"throughput from disk: \d\.\d\d\d of that in memory \(processor\)", out)
    assert "same state after 2 rounds: True" in out


@pytest.mark.parametrize("runs", ["1", "2"])
def test_runs_that_save_beside_ones_that_never_do(start, capsys, monkeypatch, runs):
    monkeypatch.setattr(checkpoint, "write_copy", checkpoint.write_copy)  # which the script wraps
    small = ["--model", "mlp", "--samples", "2000", "--set", "training.steps=1", "--set", "engine=vectorised"]
    start(FOLDER / "saving.py", "--device", "cpu", "--seconds", "0.5", "--pairs", "1", "--runs", runs, *small)
    said = capsys.readouterr().out
    assert re.search(r"with [1-9]\d* saves", said)
    assert "with 0, ratio" in said
    assert "median ratio of 1 pairs" in said


def test_what_the_clock_watches_is_there(start, monkeypatch):
    clock = runpy.run_path(str(FOLDER / "packed.py"))["Clock"]("cpu")
    watched = []
    monkeypatch.setattr(type(clock), "watch", lambda _, owner, name, label: watched.append((owner, name)))
    clock.watch_all()
    assert watched
    assert all(hasattr(owner, name) for owner, name in watched)


def test_a_tree_against_itself(start, capsys, tmp_path):
    options = ["--device", "cpu", "--starts", "1", "--pairs", "2", "--seconds", "0.01", "--limit", "1000", "--json"]
    options.append(str(tmp_path / "found"))
    with pytest.raises(SystemExit) as ended:
        start(FOLDER / "regress.py", "--old", str(FOLDER.parent), *options, "--only", "extract fedrolex")
    assert ended.value.code == 0
    assert "slower than the limit: none" in capsys.readouterr().out
    found = json.loads((tmp_path / "found").read_text())
    assert [(row["case"], row["alike"]) for row in found["cases"]] == [("extract fedrolex", True)]
    assert not found["failed"]


@pytest.mark.parametrize("name", ["aggregate", "serial", "vectorised", "digits cuda", "stacks", "slots"])
def test_cases_go_on_until_they_are_ended(name):
    known = runpy.run_path(str(FOLDER / "regress" / "cases.py"))["cases"]
    case = next(case for case in known("cpu") if name in case)
    assert case in known("cuda")
    notes = []

    def over(note):
        notes.append(note)
        if len(notes) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        known("cpu")[case](over)
    assert len(notes) == 2


class Recorded:
    """A side of a comparison whose rounds take so many seconds, turn by turn."""

    def __init__(self, name, journal, rounds):
        self.name, self.journal, self.rounds = name, journal, iter(rounds)

    def ask(self, **request):
        if "end" in request:
            return {}
        if "case" not in request:
            self.journal.append(self.name)
        seconds = [next(self.rounds)] * request["repetitions"]
        return {"seconds": [3 * seconds[0], *seconds], "processor": seconds, "note": None}


def test_sides_take_turns_and_the_median_of_the_pairs_counts():
    space = runpy.run_path(str(FOLDER / "regress.py"))
    journal = []
    old = Recorded("old", journal, [1.0, 1.0, 1.0, 2.0])
    new = Recorded("new", journal, [1.0, 1.1, 1.2, 2.0])
    row = space["Row"].of("any", [space["take_turns"]("any", [old, new], pairs=3, seconds=1.0)])
    assert journal == ["old", "new", "new", "old", "old", "new"]
    assert row.ratio == pytest.approx(1.1)  # of 1.1, 1.2 and 1: a slow start of a turn does not count
    assert row.quartiles == pytest.approx((1.05, 1.15))


def test_which_process_was_started_first_does_not_count():
    space = runpy.run_path(str(FOLDER / "regress.py"))

    def answers(*seconds):
        return tuple({"seconds": [each], "processor": [each], "note": None} for each in seconds)

    new_later = [answers(1.0, 0.8), answers(1.0, 0.9)]
    old_later = [answers(0.8, 1.0), answers(0.9, 1.0)]
    assert space["Row"].of("any", [new_later, old_later]).ratio == pytest.approx(1)


def test_a_case_that_fails_is_ended_on_both_sides():
    space = runpy.run_path(str(FOLDER / "regress.py"))
    ended = []

    class Side:
        name = "old"

        def ask(self, **request):
            if "end" not in request:
                raise space["Failed"]("old: no memory")
            ended.append(self)
            return {}

    old, new = Side(), Side()
    with pytest.raises(space["Failed"], match="no memory"):
        space["take_turns"]("any", [old, new], pairs=1, seconds=1.0)
    assert ended == [old, new]


@pytest.fixture(scope="module")
def accuracy():
    """The accuracy of a case with a small network and fifteen rounds in place of the quick start."""
    hostile = runpy.run_path(str(FOLDER / "hostile.py"))
    small = ["rounds=15", "model.name=mlp", "model.options={hidden=[16]}", "evaluation.every=15"]
    small += ["data.partition=iid", "data.partition_options={}"]
    return cache(lambda name: hostile["accuracy"](hostile["CASES"][name], seed=2, hostile=2, clip=2.0, changes=small))


@pytest.mark.parametrize(("case", "kept_out"), [("undefended", False), ("norm-guarded", True), ("bound-guarded", True)])
def test_two_of_twenty_that_go_backwards_are_kept_out(accuracy, case, kept_out):
    """Within 5 points of the run without them."""
    assert (accuracy(case) > accuracy("absent") - 0.05) == kept_out


def test_models_that_stay_with_clients_are_measured_on_every_engine(start, tmp_path):
    out = tmp_path / "found.json"
    start(FOLDER / "own_models.py", "--model", "mlp", "--turns", "1", "--out", str(out))
    found = json.loads(out.read_text())
    assert {method: list(engines) for method, engines in found.items()} == {
        method: ["serial", "vectorised", "cuda"] for method in ("dsfl", "fedgkt")
    }


def test_distillation_is_measured_on_the_real_path(start, tmp_path, capsys):
    out = tmp_path / "found.json"
    small = ["--model", "cnn", "--options", '{"widths": [16, 16]}', "--steps", "3", "--samples", "40"]
    start(FOLDER / "distillation.py", *small, "--teachers", "5", "--batch-size", "16", "--out", str(out))
    found = json.loads(out.read_text())
    assert [found[case]["steps"] for case in ("alike", "widths")] == [3, 3]
    assert min(found[case][part] for case in ("alike", "widths") for part in ("teachers_s", "eager_s")) > 0
    said = capsys.readouterr().out
    assert "each of 1 students" in said
    assert "each of 5 students" in said
    assert "15 s on one H200" in said
