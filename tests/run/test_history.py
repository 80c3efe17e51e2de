"""Checkpoints of earlier rounds, and going back to one."""

from __future__ import annotations

import json
import os

import pytest
from typer.testing import CliRunner

from fedwidth.cli.deploy import app
from fedwidth.errors import OptionError, StateError
from fedwidth.experiment import Experiment
from fedwidth.run import checkpoint
from fedwidth.run import checkpoint_history as history
from fedwidth.run.folder import LOCK, SERVE_LOCK, locked, read_metrics
from small_runs import contents, same, small

KEEPING = ("rounds=23", "checkpoint_every=1", "checkpoint_history=3", "evaluation.every=1", "devices.per_round=2")


def run(place, *changes, resume=False):
    return Experiment(small(*KEEPING, *changes)).run(place, resume=resume)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    place = tmp_path_factory.mktemp("history") / "run"
    return place, run(place)


def copy_of(finished, tmp_path):
    import shutil

    shutil.copytree(finished[0], tmp_path / "run")
    return tmp_path / "run"


def test_the_last_ones_and_every_tenth_are_kept(finished):
    assert history.rounds_kept(finished[0]) == [10, 20, 21, 22, 23]


@pytest.mark.parametrize("round", [10, 21])
def test_going_back_gives_the_same_run_again(finished, tmp_path, round):
    place = copy_of(finished, tmp_path)
    history.go_back(place, round)
    assert checkpoint.rounds_done(place) == round
    assert [line["round"] for line in read_metrics(place)] == list(range(1, round + 1))
    assert not (place / "summary.json").exists()
    assert max(history.rounds_kept(place)) == round
    again = run(place, resume=True)
    assert same(dict(again.server.state), dict(finished[1].server.state))
    assert contents(place) == contents(finished[0])
    assert history.rounds_kept(place) == [10, 20, 21, 22, 23]


def test_what_cannot_be_gone_back_to_changes_nothing(finished, tmp_path):
    place = copy_of(finished, tmp_path)
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file() and path.name != LOCK}
    with pytest.raises(OptionError, match=r"at round 23 and has no checkpoint of round 5; there are: 10, 20, 21, 22"):
        history.go_back(place, 5)
    damaged = history.path_of(place, 21)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x00")
    with pytest.raises(StateError, match="damaged"):
        history.go_back(place, 21)
    for lock in (LOCK, SERVE_LOCK):
        with locked(place, lock), pytest.raises(OptionError, match="another run is writing"):
            history.go_back(place, 20)
    (place / "metrics.jsonl").write_text("")
    with pytest.raises(StateError, match="does not hold the rounds 1 to 20"):
        history.go_back(place, 20)
    with pytest.raises(OptionError, match="holds no checkpoint"):
        history.go_back(tmp_path, 1)
    for path, content in before.items():
        if path.name != "metrics.jsonl" and path != damaged:
            assert path.read_bytes() == content


@pytest.mark.parametrize("moment", ["checkpoint", "metrics"])
def test_killed_on_the_way_back_it_is_one_or_the_other(finished, tmp_path, monkeypatch, moment):
    place = copy_of(finished, tmp_path)

    class Killed(BaseException):
        pass

    def die(source, target, replace=os.replace):
        if target.name.startswith(moment):
            raise Killed
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", die)
        with pytest.raises(Killed):
            history.go_back(place, 21)
    assert checkpoint.rounds_done(place) == (23 if moment == "checkpoint" else 21)
    again = run(place, resume=True)
    assert same(dict(again.server.state), dict(finished[1].server.state))
    assert contents(place)[1] == contents(finished[0])[1]


@pytest.mark.parametrize("where", ["host", "disk"])
def test_what_clients_remember_goes_back_too(tmp_path, where):
    changes = ("method.name=scaffold", "rounds=6", f"client_memory={where}")
    whole = run(tmp_path / "whole", *changes)
    place = tmp_path / "run"
    run(place, *changes)
    history.go_back(place, 4)
    again = run(place, *changes, resume=True)
    assert same(dict(again.server.state), dict(whole.server.state))
    named = checkpoint.client_files(place / checkpoint.NAME) | history.files_needed(place)
    assert {path.name for path in (place / "clients").iterdir()} == named


def test_without_the_setting_nothing_is_kept_and_overwriting_clears_it(finished, tmp_path):
    Experiment(small("checkpoint_every=1")).run(tmp_path / "plain")
    assert not (tmp_path / "plain" / "history").exists()
    place = copy_of(finished, tmp_path)
    Experiment(small("rounds=1")).run(place, overwrite=True)
    assert not (place / "history").exists()


def test_the_command_lists_and_goes_back(finished, tmp_path):
    place = copy_of(finished, tmp_path)
    said = CliRunner().invoke(app, ["rollback", str(tmp_path), "--list"])
    assert said.output.splitlines()[0].startswith("round 10  accuracy ")
    assert said.output.splitlines()[-1].endswith("(current)")
    done = CliRunner().invoke(app, ["rollback", str(tmp_path), "20"])
    assert done.output.replace("\n", "") == f"{place} is at round 20 again; ./run.sh goes on from there"
    assert json.loads((place / "metrics.jsonl").read_text().splitlines()[-1])["round"] == 20
    wrong = CliRunner().invoke(app, ["rollback", str(tmp_path)])
    assert isinstance(wrong.exception, OptionError)
    assert "--list" in str(wrong.exception)
    assert isinstance(CliRunner().invoke(app, ["rollback", str(tmp_path), "3", "--list"]).exception, OptionError)
