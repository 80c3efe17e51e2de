"""Loggers: every round is told once, also over a kill, and what was logged is what metrics.jsonl says.

MLflow and Weights & Biases are no part of the usual environment: `make test-track` runs their tests.
"""

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fedwidth.cli.entry import run_command
from fedwidth.errors import OptionError
from fedwidth.run.folder import TRACKING, read_metrics
from fedwidth.run.tracking import tracker as tracking
from fedwidth.run.tracking.tracker import check_tracker, make_tracker, numbers
from fedwidth.settings import Settings
from small_runs import write_recipe

LINE = {"round": 3, "global_accuracy": 0.5, "clients": [1, 2], "global_loss": None, "capacity_accuracy": {"0.5": 0.25}}
NEEDS = "needs {}: `make test-track` runs this"


def test_numbers_of_a_round():
    assert numbers(LINE) == {"round": 3.0, "global_accuracy": 0.5, "capacity_accuracy/0.5": 0.25}
    assert numbers({"round": 1, "capacity_accuracy": {"0.5": None, "1": 1}}) == {"round": 1.0, "capacity_accuracy/1": 1}


def test_none_is_silent(tmp_path):
    tracker = make_tracker("", "a", Settings(), tmp_path)
    tracker.log(LINE)
    tracker.close()
    assert not list(tmp_path.iterdir())


class Notebook:
    """A logger that writes down what it is told: its runs survive it, as those of a server would."""

    def __init__(self, *, fails_at: int = 0) -> None:
        self.runs: dict[str, list[int]] = {}
        self.ends: list[bool] = []
        self.fails_at = fails_at

    def open(self, run):
        self.run = run or f"run-{len(self.runs)}"
        rounds = self.runs.setdefault(self.run, [])
        return self.run, max(rounds, default=0)

    def log(self, metrics, round):
        assert metrics["round"] == round
        if round == self.fails_at:
            raise RuntimeError("the server\nis gone")
        self.runs[self.run].append(round)

    def close(self, finished):
        self.ends.append(finished)


@pytest.fixture
def notebook(monkeypatch):
    book = Notebook()
    monkeypatch.setitem(tracking.BACKENDS, "tensorboard", lambda *_: book)
    monkeypatch.setitem(sys.modules, "tensorboard", ModuleType("tensorboard"))  # it is asked whether it is there
    return book


def tracked(folder: Path, *rounds: int, last: int = 5) -> None:
    """A run that goes through these rounds: each is in metrics.jsonl before it is logged."""
    tracker = make_tracker("tensorboard", "a", Settings(rounds=last), folder)
    for round in rounds:
        with open(folder / "metrics.jsonl", "a") as file:
            file.write(json.dumps({"round": round}) + "\n")
        tracker.log({"round": round})
    tracker.close()


def test_a_resumed_run_goes_on_in_the_same_run(notebook, tmp_path):
    tracked(tmp_path, 1, 2)
    tracked(tmp_path, 3, 4, 5)
    assert notebook.runs == {"run-0": [1, 2, 3, 4, 5]}
    assert notebook.ends == [False, True]


def test_rounds_that_are_repeated_after_a_kill_are_logged_once(notebook, tmp_path):
    tracked(tmp_path, 1, 2, 3)
    (tmp_path / "metrics.jsonl").write_text('{"round": 1}\n')  # the checkpoint was of round 1
    tracked(tmp_path, 2, 3, 4, 5)
    assert notebook.runs == {"run-0": [1, 2, 3, 4, 5]}


def test_rounds_the_logger_lacks_come_from_the_metrics(notebook, tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"round": 1}\n{"round": 2}\n')  # it was not tracked so far
    tracked(tmp_path, 3, 4, 5)
    assert notebook.runs == {"run-0": [1, 2, 3, 4, 5]}


@pytest.mark.parametrize("content", ["", "[]", "{", '{"mlflow": "other"}'])
def test_a_run_that_is_not_remembered_is_a_new_one(content, notebook, tmp_path):
    (tmp_path / TRACKING).write_text(content)
    tracked(tmp_path, 1)
    assert notebook.runs == {"run-0": [1]}
    assert json.loads((tmp_path / TRACKING).read_text())["tensorboard"] == "run-0"


def test_a_run_with_no_round_to_do_opens_nothing(notebook, tmp_path):
    tracked(tmp_path)
    assert notebook.runs == {}
    assert notebook.ends == []


def test_a_logger_that_fails_does_not_end_the_training(notebook, tmp_path, capsys):
    notebook.fails_at = 3
    tracked(tmp_path, 1, 2, 3, 4, 5)
    assert notebook.runs == {"run-0": [1, 2]}
    assert notebook.ends == [False]
    (warning,) = capsys.readouterr().err.splitlines()
    assert "tensorboard failed after round 2, and the run goes on without it" in warning
    assert warning.endswith(": the server is gone")


def test_a_logger_that_cannot_be_used_is_refused_before_anything_is_written(monkeypatch, tmp_path, capsys):
    def broken(*_):
        raise RuntimeError("no such\nstore")

    monkeypatch.setitem(tracking.BACKENDS, "tensorboard", broken)
    pytest.importorskip("tensorboard")
    assert run_command(["run", write_recipe(tmp_path), "--out", str(tmp_path / "run"), "--track", "tensorboard"]) == 2
    assert capsys.readouterr().err.splitlines() == ["error: --track tensorboard cannot be used: no such store"]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_is_one_line(name, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, name, None)
    assert run_command(["run", write_recipe(tmp_path), "--out", str(tmp_path / "run"), "--track", name]) == 2
    said = f"error: --track {name} needs the extra: pip install 'fedwidth[{name}]'"
    assert capsys.readouterr().err.splitlines() == [said]
    assert not (tmp_path / "run").exists()


def test_an_unknown_tracker_is_refused():
    with pytest.raises(OptionError, match="did you mean 'mlflow'"):
        check_tracker("mlflw")


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


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_shows_every_round_once_after_a_kill(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracked(tmp_path, 1, 2, 3)
    (tmp_path / "metrics.jsonl").write_text('{"round": 1}\n')  # the checkpoint was of round 1
    tracked(tmp_path, 2, 3, 4, 5)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("round")] == [(n, float(n)) for n in range(1, 6)]


# What follows talks to the real packages.

ROUNDS = 40


def fedwidth(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """The command, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "fedwidth", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> str:
    """Its standard error, once it has ended well."""
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return said


def killed_and_resumed(folder: Path, name: str, environment: dict[str, str]) -> None:
    """A run that is killed after some rounds (the checkpoint is older) and resumed, tracked all along."""
    out = folder / "run"
    changes = ["--set", f"rounds={ROUNDS}", "--set", "checkpoint_every=4"]
    command = ["run", write_recipe(folder), *changes, "--out", str(out), "--track", name]
    process = fedwidth(*command, **environment)
    while len(read_metrics(out)) < 6:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert len(read_metrics(out)) < ROUNDS, "it was over before it could be killed"
    finished(fedwidth(*command, "--resume", **environment))


def wanted(folder: Path) -> dict[str, dict[int, float]]:
    """What metrics.jsonl says: key -> round -> number. Seconds differ where a round was done twice."""
    found: dict[str, dict[int, float]] = {}
    for line in read_metrics(folder):
        for key, value in numbers(line).items():
            if key != "seconds":
                found.setdefault(key, {})[line["round"]] = value
    return found


def run_of(folder: Path, name: str) -> str:
    return json.loads((folder / TRACKING).read_text())[name]


@pytest.fixture
def store(tmp_path):
    pytest.importorskip("mlflow", reason=NEEDS.format("mlflow"))
    return f"sqlite:///{tmp_path}/mlflow.db"


def mlflow_runs(store: str) -> dict[str, object]:
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=store)
    everywhere = [experiment.experiment_id for experiment in client.search_experiments()]
    return {run.info.run_id: run for run in client.search_runs(everywhere)}


def mlflow_history(store: str, run: str, key: str) -> list[tuple[int, float]]:
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=store)
    return [(point.step, point.value) for point in client.get_metric_history(run, key)]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_holds_what_the_metrics_say(store, tmp_path):
    recipe = write_recipe(tmp_path, "evaluation.capacities = [0.5, 1]\n")
    command = ["run", recipe, "--out", str(tmp_path / "run"), "--seeds", "1,2", "--track", "mlflow"]
    finished(fedwidth(*command, MLFLOW_TRACKING_URI=store))
    runs = mlflow_runs(store)
    assert sorted(run.info.run_name for run in runs.values()) == ["fedrolex, seed 1", "fedrolex, seed 2"]
    for seed in ("1", "2"):
        folder = tmp_path / "run" / f"seed-{seed}"
        run = runs[run_of(folder, "mlflow")]
        assert run.info.status == "FINISHED"
        assert run.data.params["seed"] == seed
        assert run.data.params["devices.capacities"] == "a1-b1-c1"
        points = wanted(folder)
        assert "capacity_accuracy/0.5" in points
        for key, rounds in points.items():
            assert mlflow_history(store, run.info.run_id, key) == list(rounds.items()), key


@pytest.mark.filterwarnings("ignore")
def test_mlflow_goes_on_in_the_same_run_after_a_kill(store, tmp_path):
    killed_and_resumed(tmp_path, "mlflow", {"MLFLOW_TRACKING_URI": store})
    ((run, found),) = mlflow_runs(store).items()
    assert run == run_of(tmp_path / "run", "mlflow")
    assert found.info.status == "FINISHED"
    for key, rounds in wanted(tmp_path / "run").items():
        assert mlflow_history(store, run, key) == list(rounds.items()), key


@pytest.mark.filterwarnings("ignore")
def test_mlflow_starts_anew_where_its_run_is_gone(store, tmp_path, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    client = mlflow.MlflowClient(tracking_uri=store)
    deleted = client.create_run("0").info.run_id
    client.delete_run(deleted)
    for gone in (deleted, "0" * 32):
        (tmp_path / TRACKING).write_text(json.dumps({"mlflow": gone}))
        tracker = make_tracker("mlflow", "a", Settings(rounds=9), tmp_path)
        tracker.log({"round": 1})
        tracker.close()
        run = run_of(tmp_path, "mlflow")
        assert run != gone
        assert mlflow_runs(store)[run].info.status == "KILLED"  # as one round of nine is


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("uri", ["nonsense://there", "sqlite:////proc/no/such/folder.db"])
def test_an_mlflow_store_that_does_not_work_is_one_line(uri, store, tmp_path):
    process = fedwidth(
        "run", write_recipe(tmp_path), "--out", str(tmp_path / "run"), "--track", "mlflow", MLFLOW_TRACKING_URI=uri
    )
    _, said = process.communicate(timeout=300)
    assert process.returncode == 2, said
    assert said.splitlines()[-1].startswith("error: --track mlflow cannot be used: ")
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


def interleaved(name: str, folder: Path) -> list[Path]:
    """Two runs that are open at the same time, as packed runs are: the second logs ten times what the first does."""
    places = [folder / "one", folder / "two"]
    trackers = []
    for place in places:
        place.mkdir()
        trackers.append(make_tracker(name, place.name, Settings(rounds=2), place))
    for round in (1, 2):
        for tracker, factor in zip(trackers, (1, 10), strict=True):
            tracker.log({"round": round, "train_loss": float(round * factor)})
    for tracker in trackers:
        tracker.close()
    return places


@pytest.mark.filterwarnings("ignore")
def test_mlflow_keeps_runs_apart_that_are_open_at_a_time(store, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    one, two = (run_of(place, "mlflow") for place in interleaved("mlflow", tmp_path))
    assert "warning" not in capsys.readouterr().err
    assert mlflow_history(store, one, "train_loss") == [(1, 1.0), (2, 2.0)]
    assert mlflow_history(store, two, "train_loss") == [(1, 10.0), (2, 20.0)]
    assert {run.info.status for run in mlflow_runs(store).values()} == {"FINISHED"}


@pytest.mark.filterwarnings("ignore")
def test_mlflow_logs_to_the_experiment_its_variables_name(store, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    one, _ = (run_of(place, "mlflow") for place in interleaved("mlflow", tmp_path))
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=store)
    assert client.get_experiment(client.get_run(one).info.experiment_id).name == "mine"


OFFLINE = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}


@pytest.fixture
def records():
    """The reader of what wandb leaves offline: LevelDB's log format (blocks of 32 KiB) with a protobuf in each record.

    The package itself has no reader in Python any more, but its message types.
    """
    pytest.importorskip("wandb", reason=NEEDS.format("wandb"))
    from wandb.proto.wandb_internal_pb2 import Record

    def read(path: Path) -> Iterator[Record]:
        content, at, message = path.read_bytes(), 7, b""  # after the file's own head
        while at + 7 <= len(content):
            if (left := 32768 - at % 32768) < 7:
                at += left
                continue
            _, size, kind = struct.unpack_from("<IHB", content, at)
            message += content[at + 7 : at + 7 + size]
            at += 7 + size
            if kind in (1, 4):  # whole, or the last part
                yield Record.FromString(message)
                message = b""

    return read


def wandb_history(found) -> dict[str, dict[int, float]]:
    """What a file says: key -> round -> number, without what wandb adds by itself."""
    history: dict[str, dict[int, float]] = {}
    for record in found:
        if record.WhichOneof("record_type") == "history":
            for item in record.history.item:
                key = "/".join(item.nested_key) or item.key
                rounds = history.setdefault(key, {})
                assert record.history.step.num not in rounds, f"{key} has a round twice"
                rounds[record.history.step.num] = json.loads(item.value_json)
    return {key: rounds for key, rounds in history.items() if not key.startswith("_") and key != "seconds"}


def test_wandb_holds_what_the_metrics_say(records, tmp_path):
    recipe = write_recipe(tmp_path, "evaluation.capacities = [0.5, 1]\n")
    finished(fedwidth("run", recipe, "--out", str(tmp_path / "run"), "--seeds", "1,2", "--track", "wandb", **OFFLINE))
    for seed in ("1", "2"):
        folder = tmp_path / "run" / f"seed-{seed}"
        (path,) = folder.glob("wandb/offline-run-*/*.wandb")
        found = list(records(path))
        (run,) = (record.run for record in found if record.WhichOneof("record_type") == "run")
        assert run.run_id == run_of(folder, "wandb")
        assert (run.display_name, run.run_group, run.project) == (f"fedrolex, seed {seed}", "fedrolex", "fedwidth")
        config = {item.key: json.loads(item.value_json) for item in run.config.update}
        assert config["seed"] == int(seed)
        assert config["training"]["batch_size"] == 64
        assert "capacity_accuracy/0.5" in wanted(folder)
        assert wandb_history(found) == wanted(folder)
        assert [r.exit.exit_code for r in found if r.WhichOneof("record_type") == "exit"] == [0]


def test_wandb_offline_holds_every_round_after_a_kill(records, tmp_path):
    killed_and_resumed(tmp_path, "wandb", OFFLINE)
    first, second = sorted((tmp_path / "run").glob("wandb/offline-run-*/*.wandb"))
    # One id, so that both belong to one run once they are uploaded; what the kill took is in the second.
    assert first.stem == second.stem == f"run-{run_of(tmp_path / 'run', 'wandb')}"
    assert wandb_history(records(second)) == wanted(tmp_path / "run")


@pytest.mark.filterwarnings("ignore")
def test_wandb_keeps_runs_apart_that_are_open_at_a_time(records, tmp_path, monkeypatch, capsys):
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    one, two = interleaved("wandb", tmp_path)
    import wandb

    wandb.teardown()  # its own process writes the files, and has written them when it ends
    assert "warning" not in capsys.readouterr().err
    for place, factor in ((one, 1), (two, 10)):
        (path,) = place.glob("wandb/offline-run-*/*.wandb")
        assert wandb_history(records(path))["train_loss"] == {1: factor, 2: 2 * factor}


def test_wandb_without_a_key_is_one_line(records, tmp_path):
    nowhere = {"HOME": str(tmp_path), "NETRC": str(tmp_path / "netrc"), "WANDB_MODE": "online", "WANDB_API_KEY": ""}
    process = fedwidth("run", write_recipe(tmp_path), "--out", str(tmp_path / "run"), "--track", "wandb", **nowhere)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 2, said
    assert said.splitlines()[-1].startswith("error: --track wandb cannot be used: ")
    assert "WANDB_MODE=offline" in said.splitlines()[-1]
    assert not (tmp_path / "run").exists()
