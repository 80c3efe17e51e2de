"""Loggers: what each is told, and that one which is missing is refused before anything is written."""

import sys
from types import SimpleNamespace

import pytest

from fedwidth.cli import run_command
from fedwidth.errors import OptionError
from fedwidth.settings import Settings
from fedwidth.tracking import check_tracker, make_tracker, numbers
from small_runs import write_recipe

LINE = {"round": 3, "global_accuracy": 0.5, "clients": [1, 2], "global_loss": None, "capacity_accuracy": {"0.5": 0.25}}


def test_numbers_of_a_round():
    assert numbers(LINE) == {"round": 3.0, "global_accuracy": 0.5, "capacity_accuracy/0.5": 0.25}


def test_none_is_silent(tmp_path):
    tracker = make_tracker("", "a", Settings(), tmp_path)
    tracker.log(LINE)
    tracker.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore")
def test_tensorboard(tmp_path, capsys):
    pytest.importorskip("tensorboard")
    command = ["run", write_recipe(tmp_path), "--out", str(tmp_path / "run"), "--track", "tensorboard"]
    assert run_command(command) == 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [e.step for e in events.Scalars("train_loss")] == [1, 2, 3]
    assert [e.step for e in events.Scalars("global_accuracy")] == [2, 3]
    # Replaced with the run they belong to, and not plotted on top of the next.
    assert run_command([*command, "--overwrite"]) == 0
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1


def test_mlflow(tmp_path, monkeypatch):
    calls = []
    fake = SimpleNamespace(
        start_run=lambda run_name: calls.append(("start", run_name)),
        log_params=lambda params: calls.append(("params", params)),
        log_metrics=lambda metrics, step: calls.append(("metrics", metrics, step)),
        end_run=lambda: calls.append(("end",)),
    )
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    tracker = make_tracker("mlflow", "title", Settings(), tmp_path)
    assert calls == []  # opened by the first round
    tracker.log(LINE)
    tracker.close()
    assert calls == [
        ("start", "title"),
        ("params", {"method": "fedrolex", "seed": 1}),
        ("metrics", numbers(LINE), 3),
        ("end",),
    ]


def test_wandb(tmp_path, monkeypatch):
    calls = []
    run = SimpleNamespace(log=lambda metrics, step: calls.append((metrics, step)), finish=lambda: calls.append("end"))

    def init(**options):
        calls.append(options)
        return run

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    tracker = make_tracker("wandb", "title", Settings(), tmp_path)
    tracker.log(LINE)
    tracker.close()
    assert calls[0]["name"] == "title"
    assert calls[0]["config"]["training"]["lr"] == 0.1
    assert calls[1:] == [(numbers(LINE), 3), "end"]


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_is_one_sentence(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(OptionError, match=rf"--track {name} needs the extra: pip install 'fedwidth\[{name}\]'"):
        check_tracker(name)


def test_an_unknown_tracker_is_refused():
    with pytest.raises(OptionError, match="did you mean 'mlflow'"):
        check_tracker("mlflw")
