"""The measuring scripts start: they use the library from within, where names change."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from fedwidth import checkpoint

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
        if error.name not in ("ray", "flwr", "pfl"):
            raise
        pytest.skip(f"needs {error.name}")
    assert ended.value.code == 0
    assert "usage" in capsys.readouterr().out


def test_packs_and_single_runs_side_by_side(start, capsys):
    start(FOLDER / "packed.py", "--device", "cpu", "--rounds", "1", "--runs", "2", "--set", "training.steps=1")
    assert "largest difference of weights 0.0e+00" in capsys.readouterr().out


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
