"""Worker processes started by a plain script: it runs once, guarded or not."""

import subprocess
import sys

import pytest

RUN = """
print("the script runs")
settings = read_settings("quickstart", ["rounds=1", "engine=processes", "workers=2", "devices.per_round=2"]).main
result = Experiment(settings, model=model).run()
print(result.summary["rounds"], "rounds with", type(result.model).__name__)
"""
IMPORTS = """
from torch import nn
from fedwidth.config.read import read_settings
from fedwidth.experiment import Experiment
"""
OWN = """
class Own(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))

model = Own()
"""


def run_script(folder, text):
    (folder / "script.py").write_text(text)
    done = subprocess.run([sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, timeout=240)
    return done.returncode, done.stdout, done.stderr


def test_a_script_without_a_guard_runs_once(tmp_path):
    status, out, error = run_script(tmp_path, IMPORTS + "model = None" + RUN)
    assert (status, out) == (0, "the script runs\n1 rounds with Cnn\n"), error


def test_a_model_of_the_script_is_found_where_it_is_guarded(tmp_path):
    guarded = "\nif __name__ == '__main__':" + RUN.replace("\n", "\n    ") + "\n"
    status, out, error = run_script(tmp_path, IMPORTS + OWN + guarded)
    assert (status, out) == (0, "the script runs\n1 rounds with Own\n"), error


@pytest.mark.parametrize("how", ["script", "command"])
def test_a_model_of_a_script_that_would_run_again_is_refused_in_one_line(tmp_path, how):
    text = IMPORTS + OWN + RUN
    if how == "script":
        status, out, error = run_script(tmp_path, text)
        expected = "model or data are defined in script.py, which every worker process would run again: put what"
    else:
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=240)
        status, out, error = done.returncode, done.stdout, done.stderr
        expected = "model or data are defined in an interactive session, which worker processes cannot import"
    assert status == 1
    assert out == "the script runs\n"
    assert error.splitlines()[-1].startswith(f"fedwidth.errors.OptionError: {expected}")
    assert error.splitlines()[-1].endswith("; use engine = 'serial'")
