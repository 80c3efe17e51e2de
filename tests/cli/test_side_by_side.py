"""Several runs at a time: the bits of one at a time, one line of an error, and kill and resume as ever."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedwidth.cli.entry import run_command
from fedwidth.cli.runs.planned_run import PlannedRun
from fedwidth.cli.runs.side_by_side import choose_number
from fedwidth.engines.processes.shared_memory import count_shared
from fedwidth.experiment import Experiment
from small_runs import contents, small, write_recipe

RUNS = [f"training.lr={rate}/seed-{seed}" for rate in ("0.05", "0.1") for seed in (1, 2)]
SWEEP = ["--over", "training.lr=0.05,0.1", "--seeds", "1,2"]


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory):
    """What the runs leave when they train one after the other."""
    folder = tmp_path_factory.mktemp("sweep")
    assert run_command(["sweep", write_recipe(folder), "--out", str(folder / "out"), *SWEEP, "--jobs", "1"]) == 0
    return {run: contents(folder / "out" / run) for run in RUNS}


def test_the_same_bits_however_many_at_a_time(one_by_one, tmp_path, capfd):
    assert run_command(["sweep", write_recipe(tmp_path), "--out", str(tmp_path / "out"), *SWEEP, "--jobs", "3"]) == 0
    out, err = capfd.readouterr()
    assert {run: contents(tmp_path / "out" / run) for run in RUNS} == one_by_one
    for rate in ("0.05", "0.1"):
        assert all(err.count(f"lr {rate}, seed {seed}: 3 rounds, accuracy") == 1 for seed in (1, 2))
    assert "report:" in out


def test_a_run_that_fails_is_one_line_and_the_others_are_saved(tmp_path, capfd):
    changes = ["training.lr=0.1", "training.schedule=multistep", "training.milestones=[2]", "training.clip=0"]
    sets = [part for change in changes for part in ("--set", change)]
    over = ["--over", "training.decay=1,1e30", "--jobs", "2"]
    assert run_command(["sweep", write_recipe(tmp_path), "--out", str(tmp_path / "out"), *sets, *over]) == 2
    err = capfd.readouterr().err
    assert re.search(r"^error: .*client \d+ .* not finite", err, re.MULTILINE)
    assert "Traceback" not in err
    names = {path.name for path in (tmp_path / "out" / "training.decay=1" / "seed-1").iterdir()}
    assert "checkpoint.safetensors" in names


def test_overwriting_clears_all_before_the_first_begins(tmp_path):
    recipe = write_recipe(tmp_path, '\n[[compare]]\nlabel = "b"\nmethod.name = "heterofl"\n')
    command = ["run", recipe, "--out", str(tmp_path / "out"), "--set", "rounds=20", "--jobs", "2"]
    assert run_command(command) == 0
    first = [contents(tmp_path / "out" / run) for run in (".", "compare/b")]
    assert run_command([*command, "--overwrite"]) == 0
    assert [contents(tmp_path / "out" / run) for run in (".", "compare/b")] == first


def rounds_written(folder):
    """Rounds of all runs in the folder that are in their metrics."""
    return sum(path.read_text().count("\n") for path in Path(folder).rglob("metrics.jsonl"))


def interrupted(command, folder, how):
    """The exit code and the messages of a sweep that got this signal a few rounds after it began or went on."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    before, ends = rounds_written(folder), time.monotonic() + 120
    process = subprocess.Popen(
        [sys.executable, "-m", "fedwidth", *command], env=environment, stderr=subprocess.PIPE, text=True
    )
    while rounds_written(folder) < before + 2:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < ends
        time.sleep(0.02)
    process.send_signal(how)
    messages = process.communicate(timeout=120)[1]
    return process.returncode, messages


def test_stopped_and_killed_it_goes_on_to_the_same_bits(tmp_path):
    recipe, over = write_recipe(tmp_path), ["--over", "training.lr=0.05,0.1", "--set", "rounds=40"]
    assert run_command(["sweep", recipe, "--out", str(tmp_path / "whole"), *over, "--jobs", "1"]) == 0
    cut = ["sweep", recipe, "--out", str(tmp_path / "cut"), *over, "--set", "checkpoint_every=5"]
    code, messages = interrupted([*cut, "--jobs", "2"], tmp_path / "cut", signal.SIGTERM)
    assert code == 1
    assert "everything is saved. Go on with the same command and --resume" in messages
    code, _ = interrupted([*cut, "--jobs", "2", "--resume"], tmp_path / "cut", signal.SIGKILL)
    assert code == -signal.SIGKILL
    ends = time.monotonic() + 60
    while run_command([*cut, "--jobs", "1", "--resume"]) != 0:  # processes of a killed one take a moment to notice
        assert time.monotonic() < ends
        time.sleep(0.2)
    for run in ("training.lr=0.05/seed-1", "training.lr=0.1/seed-1"):
        assert contents(tmp_path / "cut" / run) == contents(tmp_path / "whole" / run)


def planned(*changes):
    return PlannedRun("a", "a", small(*changes), Path("nowhere"))


def test_how_many_at_a_time():
    def number(asked, *runs, **machine):
        return choose_number(asked, runs, Experiment, resume=False, cores=4, **machine)

    long = planned("rounds=60")
    assert number(0, long, long) == 2
    assert number(0, *[long] * 9) == 4
    assert number(0, long) in (0, 1)
    assert number(0, planned(), planned()) == 1  # over before a process has started
    assert number(3, planned(), planned()) == 2
    assert number(1, long, long) == 1
    assert number(0, planned("rounds=60", "engine=processes"), long) == 1
    # Copies of the data may take a quarter of the memory: with 8 times the data, two copies.
    size = count_shared(Experiment(small()).data)
    assert number(0, *[long] * 9, memory=8 * size) == 2
    assert number(0, *[long] * 9, memory=size) == 1
    assert number(0, *[long] * 9, memory=0) == 4  # the system does not say how much there is
