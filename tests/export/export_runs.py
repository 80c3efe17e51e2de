"""Small finished runs to take models out of, each trained once for all tests of a session."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from fedwidth.config.read import read_settings
from fedwidth.experiment import Experiment

RECIPE = """
rounds = 2
model.name = "cnn"
model.options = { widths = [8, 16] }
data.clients = 6
devices.per_round = 3
devices.capacities = "1:1 1/2:1 1/4:1"
training.batch_size = 32
evaluation.capacities = [1, 0.5, 0.25]
evaluation.local = false
engine = "serial"
"""


@cache
def finished(*changes: str) -> Path:
    """The folder of a run that has ended, with changes as `--set` takes them."""
    folder = Path(mkdtemp(prefix="fedwidth-export-")) / "run"
    Experiment(read_settings(RECIPE, changes).main).run(folder)
    return folder
