"""A run that was killed, stopped or cut off by a full disk goes on to the same bits; nothing else is resumed."""

import contextlib
import errno
import fcntl
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from saving_runs import Killed, raising

from fedwidth.cli.entry import run_command
from fedwidth.engines.serial import SerialEngine
from fedwidth.errors import OptionError, StateError
from fedwidth.experiment import Experiment
from fedwidth.run import checkpoint, folder
from small_runs import contents, small, write_recipe

VARIANTS = {
    "plain": [],
    "batch norm": ["model.name=cnn", "model.options={widths=[4]}"],
    "moments": ["server.optimiser=fedadam", "server.lr=0.1", "server.lr_decay=0.9"],
    "momentum": ["server.optimiser=fedavgm"],
    "history": ["method.name=fedminoccurances"],
    "dynamic": ["devices.dynamic=true", "method.name=feddropout"],
    "rare checkpoints": ["checkpoint_every=3"],
    "fjord": ["method.name=fjord", "training.schedule=cosine"],
}


def kill_at(monkeypatch, owner, name, *, after):
    """The so many-th call of a function of the operating system is the run's last."""
    real, calls = getattr(owner, name), []

    def call(*arguments, **options):
        calls.append(name)
        if len(calls) > after:
            raise Killed
        return real(*arguments, **options)

    monkeypatch.setattr(owner, name, call)


def run(place, *changes, **options):
    """Saved after every round, so that there is something to go on from (by time: tests/run/test_saving.py)."""
    return Experiment(small("rounds=5", "checkpoint_every=1", *changes)).run(place, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Contents of the uninterrupted run of each variant, made when first asked for."""
    made = {}

    def contents_of(variant):
        if variant not in made:
            place = tmp_path_factory.mktemp("whole") / "run"
            run(place, *VARIANTS[variant])
            made[variant] = contents(place)
        return made[variant]

    return contents_of


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("round", [1, 4])
def test_killed_after_a_round(variant, round, whole, tmp_path):
    with pytest.raises(Killed):
        run(tmp_path / "run", *VARIANTS[variant], on_round=raising(Killed, round))
    run(tmp_path / "run", *VARIANTS[variant], resume=True)
    assert contents(tmp_path / "run") == whole(variant)


@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [  # a file is written under a temporary name, made to last (fsync) and then given its own (replace)
        (fcntl, "flock", 0),  # before anything is written
        (os, "fsync", 0),  # before config.toml
        (os, "fsync", 1),  # after config.toml, before metrics.jsonl
        (os, "fsync", 2),  # a round is written down, but perhaps not on disk
        (os, "fsync", 3),  # written down, and no checkpoint yet
        (os, "fsync", 6),  # the third round is written down, but perhaps not on disk
        (os, "fsync", 7),  # written down, but not saved
        (os, "replace", 6),  # the last checkpoint is written and has its temporary name
        (os, "replace", 7),  # all rounds done, nothing summarised
    ],
)
def test_killed_at_any_other_moment(owner, name, after, whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        kill_at(patch, owner, name, after=after)
        with pytest.raises(Killed):
            run(tmp_path / "run")
    run(tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == whole("plain")


def test_killed_before_a_round_is_written_down(whole, tmp_path):
    class Dying(SerialEngine):
        def run(self, state, tasks, round, **options):
            super().run(state, tasks, round, **options)
            raise Killed

    made = Experiment(small("rounds=5", "checkpoint_every=1"))
    with pytest.raises(Killed):
        made.run(tmp_path / "run", engine=Dying(made.trainer))
    run(tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == whole("plain")


def test_killed_twice_and_left_half_written(whole, tmp_path):
    place = tmp_path / "run"
    for round in (2, 4):
        with pytest.raises(Killed):
            run(place, resume=place.exists(), on_round=raising(Killed, round))
        (place / f"{checkpoint.NAME}.partial").write_bytes(b"\x00half a check")
        with open(place / "metrics.jsonl", "a") as file:
            file.write('{"round": 9, "cli')
    run(place, resume=True)
    assert contents(place) == whole("plain")
    assert not list(place.glob("*.partial"))


def test_a_finished_run_is_left_as_it_is(whole, tmp_path):
    run(tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    result = run(tmp_path / "run", resume=True)
    assert len(result.metrics) == 5
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_seconds_go_on_counting(tmp_path):
    with pytest.raises(Killed):
        run(tmp_path / "run", on_round=raising(Killed, 2))
    result = run(tmp_path / "run", resume=True)
    seconds = [line["seconds"] for line in result.metrics]
    assert seconds == sorted(seconds)


def test_what_has_no_influence_may_change(whole, tmp_path):
    with pytest.raises(Killed):
        run(tmp_path / "run", on_round=raising(Killed, 2))
    run(tmp_path / "run", "checkpoint_every=2", "workers=1", "data.root=/elsewhere", resume=True)
    assert contents(tmp_path / "run") == whole("plain")


class TestRefused:
    @pytest.fixture
    def place(self, tmp_path):
        run(tmp_path / "run")
        return tmp_path / "run"

    def refused(self, place, words, *changes, kind=StateError):
        before = {path.name: path.read_bytes() for path in place.iterdir()}
        with pytest.raises(kind, match=words) as caught:
            run(place, *changes, resume=True)
        assert "\n" not in str(caught.value)
        assert {path.name: path.read_bytes() for path in place.iterdir()} == before

    def test_other_settings_are_named(self, place):
        self.refused(place, "other settings: training.lr is 0.1 there and 0.2 now", "training.lr=0.2")
        self.refused(place, "rounds is 5 there and 6 now", "rounds=6")
        self.refused(place, r"and \d more", "seed=2", "training.lr=2", "training.clip=3", "training.epochs=2")

    def test_files_without_a_config(self, place):
        (place / "config.toml").unlink()
        self.refused(place, "no config.toml of one to resume")

    def test_another_model(self, place):
        other = Experiment(small("rounds=5"), model=Experiment(small("model.options={hidden=[9]}")).model)
        with pytest.raises(StateError, match="other settings or another model"):
            other.run(place, resume=True)

    def rewrite(self, place, change):
        path = place / checkpoint.NAME
        with safe_open(path, "pt") as file:
            facts = json.loads(file.metadata()["fedwidth"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        change(facts, tensors)
        save_file(tensors, path, metadata={"fedwidth": json.dumps(facts)})

    def test_another_format(self, place):
        self.rewrite(place, lambda facts, _: facts.update(format=99))
        self.refused(place, "another version of fedwidth .format 99, this one reads 2.")

    def test_a_file_of_something_else(self, place):
        save_file({"weight": torch.zeros(1)}, place / checkpoint.NAME)
        self.refused(place, "another version of fedwidth")

    def test_a_flipped_bit(self, place):
        self.rewrite(place, lambda _, tensors: tensors["state.classifier.bias"].neg_())
        self.refused(place, "damaged: its checksum")

    @pytest.mark.parametrize("length", [0, 7, 100, -1])
    def test_a_short_file(self, place, length):
        path = place / checkpoint.NAME
        path.write_bytes(path.read_bytes()[:length])
        self.refused(place, "damaged")

    def test_metrics_that_lack_rounds(self, place):
        lines = (place / "metrics.jsonl").read_text().splitlines()
        (place / "metrics.jsonl").write_text("\n".join(lines[:3]) + "\n")
        self.refused(place, "rounds 1 to 5")

    def test_metrics_of_something_else(self, place):
        (place / "metrics.jsonl").write_text("[1]\n")
        self.refused(place, "no round")

    def test_a_config_of_another_version(self, place):
        path = place / "config.toml"
        path.write_text("flux = 3\n" + path.read_text())
        self.refused(place, "another version.*flux")

    def test_resume_and_overwrite(self, place):
        with pytest.raises(OptionError, match="one of them"):
            run(place, resume=True, overwrite=True)


class TestFolder:
    def test_a_second_run_is_refused_while_the_first_goes_on(self, tmp_path):
        with folder.locked(tmp_path / "run"), pytest.raises(OptionError, match="another run is writing"):
            run(tmp_path / "run")
        run(tmp_path / "run")

    def test_a_folder_with_a_run_is_refused(self, tmp_path):
        run(tmp_path / "run")
        ways = "give resume=True, overwrite=True or another folder as out"
        with pytest.raises(OptionError, match=f"holds a run already; {ways}$"):
            run(tmp_path / "run", "seed=2")

    @pytest.mark.parametrize("inside", ["", "deep/er"])
    def test_a_file_is_no_folder(self, tmp_path, inside):
        (tmp_path / "file").write_text("mine")
        with pytest.raises(OptionError, match="is a file"):
            run(tmp_path / "file" / inside)
        assert (tmp_path / "file").read_text() == "mine"

    def test_overwrite_replaces_our_files_and_no_others(self, tmp_path):
        place = tmp_path / "run"
        run(place, "server.optimiser=fedadam")
        mine = {"notes.txt": "mine", "model.safetensors": "mine", "compare.html": "mine"}
        for name, text in mine.items():
            (place / name).write_text(text)
        (place / "report.html").write_text("old")
        run(place, overwrite=True)
        assert {name: (place / name).read_text() for name in mine} == mine
        assert not (place / "report.html").exists()
        run(tmp_path / "fresh")
        assert contents(place) == contents(tmp_path / "fresh")


class TestFullDisk:
    def full_after(self, monkeypatch, calls):
        real, made = os.fsync, []

        def fsync(descriptor):
            made.append(descriptor)
            if len(made) > calls:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)

    # config.toml, an empty metrics.jsonl, then a line and a checkpoint each round
    @pytest.mark.parametrize(("calls", "rounds", "name"), [(7, 2, checkpoint.NAME), (8, 3, "metrics.jsonl")])
    def test_the_previous_checkpoint_survives(self, calls, rounds, name, whole, tmp_path, monkeypatch, capsys):
        recipe, place = write_recipe(tmp_path), tmp_path / "run"
        command = ["run", recipe, "--set", "rounds=5", "--set", "checkpoint_every=1", "--out", str(place)]
        with monkeypatch.context() as patch:
            self.full_after(patch, calls)
            assert run_command(command) == 2
        (error,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
        assert re.fullmatch(rf"error: cannot write .*{name}: No space left on device.*", error)
        with safe_open(place / checkpoint.NAME, "pt") as file:
            assert json.loads(file.metadata()["fedwidth"])["round"] == rounds
        assert not list(place.glob("*.partial"))
        assert run_command([*command, "--resume"]) == 0
        assert contents(place) == whole("plain")


def start(out, recipe, *changes, resume=False):
    """The command line in a process (and a group) of its own."""
    command = [sys.executable, "-m", "fedwidth", "run", recipe, "--out", str(out), *(["--resume"] if resume else [])]
    for change in changes:
        command += ["--set", change]
    source = str(Path(__file__).resolve().parents[2] / "src")
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )


def wait_for_round(place, round, process, seconds=120):
    ends = time.monotonic() + seconds
    metrics = place / "metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < round:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < ends, "the run did not get that far"
        time.sleep(0.01)


def group_is_gone(group, seconds=30):
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        if not _living(group):
            return True
        time.sleep(0.05)
    return False


def _living(group):
    """Members of a process group that are more than a zombie waiting for somebody to collect it."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z":
                return True
    return False


LONG = ("rounds=25", "checkpoint_every=1", "engine=processes", "workers=2")


def test_kill_9_and_ctrl_c_while_workers_train(tmp_path):
    """Killed at a random round, resumed, stopped by Ctrl-C, resumed: the bits of a run that nobody disturbed."""
    out, recipe = tmp_path / "run", write_recipe(tmp_path)
    process = start(out, recipe, *LONG)
    try:
        wait_for_round(out, random.randint(1, 8), process)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert not (out / "summary.json").exists()
    assert group_is_gone(process.pid), "workers outlived the run"

    process = start(out, recipe, *LONG, resume=True)
    try:
        wait_for_round(out, checkpoint.rounds_done(out) + 2, process)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
        printed, messages = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1
    assert re.search(
        r"stopped after round \d+ of 25; everything is saved. Go on with the same command and --resume", messages
    )
    assert "Traceback" not in messages
    assert printed == ""
    assert checkpoint.rounds_done(out) == len((out / "metrics.jsonl").read_text().splitlines())
    assert group_is_gone(process.pid)

    Experiment(small(*LONG)).run(out, resume=True)
    Experiment(small(*LONG, "engine=serial")).run(tmp_path / "undisturbed")
    assert contents(out) == contents(tmp_path / "undisturbed")


def test_a_checkpoint_that_is_not_finite_is_not_gone_on_from(tmp_path):
    """Older versions wrote some, and the next round blamed a client."""
    experiment = Experiment(small())
    experiment.run(tmp_path)
    server, _ = checkpoint.load_server(tmp_path, identity=None, device=torch.device("cpu"))
    server.state["classifier.bias"].fill_(torch.nan)
    copy = checkpoint.copy_server(server, identity=experiment.identity, extra={"seconds": 0.0})
    checkpoint.write_copy(tmp_path, copy)
    with pytest.raises(StateError, match=r"has a value in 'classifier\.bias' that is not finite"):
        Experiment(small()).run(tmp_path, resume=True)
