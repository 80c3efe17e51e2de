"""Memory of a run as large as the papers' largest: 342,477 clients in the partition, 200 a round."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import json, resource, sys
from fedwidth.config.read import read_settings
from fedwidth.experiment import Experiment

def resident():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024

seen = {}
settings = read_settings(sys.stdin.read()).main
experiment = Experiment(settings)
result = experiment.run(sys.argv[1], on_round=lambda line: seen.update({line["round"]: resident()}))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"rounds": seen, "peak": peak, "accuracy": result.summary["local_accuracy"]}))
"""

SETTINGS = """
rounds = ROUNDS
method.name = "METHOD"
data.name = "synthetic_text"
data.clients = 342477
data.partition = "natural"
data.options = { users = 342477, per_user = 4, words = 50, length = 10 }
devices = { per_round = 200, capacities = "a1-b1-c1-d1-e1" }
model = { name = "transformer", options = { embedding = 16, heads = 2, head_size = 4, hidden = 16, layers = 1 } }
training = { steps = 1, batch_size = 4, mask = "none" }
evaluation = { every = ROUNDS, batch_size = 5000 }
checkpoint_every = 50
engine = "serial"
"""


@pytest.mark.slow
@pytest.mark.parametrize(("method", "rounds"), [("fedrolex", 200), ("feddropout", 40)])
def test_a_run_of_342477_clients_is_small_and_does_not_grow(tmp_path, method, rounds):
    source = str(Path(__file__).resolve().parents[2] / "src")
    found = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path / "run")],
        input=SETTINGS.replace("METHOD", method).replace("ROUNDS", str(rounds)),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
        check=False,
    )
    assert found.returncode == 0, found.stderr
    record = json.loads(found.stdout)
    resident = [record["rounds"][str(round)] for round in range(10, rounds)]  # the last round evaluates
    print(
        f"{method}: {resident[0]:.0f} MB after 10 rounds, {resident[-1]:.0f} after {rounds}, peak {record['peak']:.0f}"
    )
    assert record["peak"] < 1.5 * 1024, "MB, at any time"
    assert resident[-1] - resident[0] < 20, "MB; the metrics that are kept are 10 KB a round"
    assert record["accuracy"] > 0
