"""The contract: the quick start works with every method by name alone, and its summary names the method."""

import json

import pytest

from fedwidth.cli.entry import run_command
from fedwidth.methods import methods


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, method in methods().items() if not method.adapters])
def test_the_quick_start_runs_with_the_defaults_of_every_method(name, tmp_path):
    out = tmp_path / "run"
    command = ["run", "--only", "fedrolex", "--set", f"method.name={name}", "--set", "rounds=3", "--out", str(out)]
    assert run_command(command) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["method"], summary["rounds"]) == (name, 3)
    assert summary["global_accuracy"] > 0
