"""The examples run, do what they say, and a method file is all a new method takes."""

from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path

import pytest
import torch

from fedwidth.experiment import Experiment
from fedwidth.methods import methods
from fedwidth.settings import DataSettings, DeviceSettings, MethodSettings, ModelSettings, Settings

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng(devices=[]):
        runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    expected = {
        "own_model": "test accuracy",
        "one_round_by_hand": "weights changed",
        "new_method": "of the weights trained",
        "importance": "a client of 1/4 holds units",
        "local_term": "FedRolex with Lasso, vectorised",
    }
    assert expected[path.stem] in printed
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


def test_own_model_learns(capsys):
    # Four classes: chance is 25 %.
    with torch.random.fork_rng(devices=[]):
        runpy.run_path(str(EXAMPLES[0].with_name("own_model.py")), run_name="__main__")
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("test accuracy"))
    assert float(line.split()[2].rstrip("%")) > 60


def test_a_method_file_in_the_methods_folder_is_all_it_takes(tmp_path, monkeypatch):
    shutil.copy(EXAMPLES[0].with_name("new_method.py"), tmp_path / "fedcomb.py")
    package = sys.modules["fedwidth.methods"]
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    methods.cache_clear()
    try:
        assert "fedcomb" in methods()
        settings = Settings(
            rounds=2,
            method=MethodSettings("fedcomb", {"step": 2}),
            model=ModelSettings("mlp", {"hidden": [16]}),
            data=DataSettings(clients=4),
            devices=DeviceSettings("b1-c1", per_round=2),
        )
        assert Experiment(settings).run().summary["method"] == "fedcomb"
    finally:
        monkeypatch.undo()
        sys.modules.pop("fedwidth.methods.fedcomb", None)
        methods.cache_clear()
