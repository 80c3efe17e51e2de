"""A real Ray: what comparing takes and what tasks ask for comes out of its workers as it does here, bit for bit.

Slow (it starts Ray): `make test-ray`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fedwidth.experiment import Experiment
from objective_runs import settings
from own_data import write_files
from small_runs import contents, same, small
from support_table import SHORT, TASKS, pairs, run_of, support

ray = pytest.importorskip("ray", reason="Ray is not installed: make test-ray")
pytestmark = pytest.mark.slow

TESTS = str(Path(__file__).parents[2])
RATES = "devices.rates={1=2e6, '1/2'=1e6, '1/4'=4e5}"
COMPARING = {
    "validation alone": ["data.validation=0.2", "evaluation.test=false"],
    "labels with weak devices": ["devices.correlate=labels", "devices.correlate_strength=0.8", "devices.dropout=0.3"],
    "capacities of their own": [
        "data.validation=0.2",
        "devices.capacities=[1,1,0.5,0.5,0.25,0.25]",
        "devices.dropout=0.3",
        RATES,
        "devices.bandwidth={all=1e4}",
        "devices.deadline=1.0",
    ],
}
"""Settings that comparing takes. A worker takes seconds to start, so that several are tried together."""


@pytest.fixture(scope="module")
def on_ray():
    """Settings of a run on a cluster with one worker, which finds the modules of the tests."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([TESTS, *filter(None, [os.environ.get("PYTHONPATH")])]))
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield ("engine=ray", "ray.engine=serial", "workers=1", f"ray.address={cluster.address}")
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.parametrize("name", COMPARING)
def test_what_comparing_takes(name, on_ray, tmp_path):
    """Held-out samples, who has which capacity, who is absent and for how long: written alike, down to the bit."""
    changes = ("rounds=4", "evaluation.every=2", *COMPARING[name])
    Experiment(small(*changes)).run(tmp_path / "serial")
    Experiment(small(*changes, *on_ray)).run(tmp_path / "ray")
    assert contents(tmp_path / "ray") == contents(tmp_path / "serial")
    lines = [json.loads(line) for line in (tmp_path / "ray" / "metrics.jsonl").read_text().splitlines()]
    if "devices.dropout" in str(changes) or "devices.deadline" in str(changes):
        assert any("absent" in line for line in lines), "somebody is left out"
    if "data.validation" in str(changes):
        assert lines[-1]["validation_accuracy"] > 0
    if "devices.rates" in str(changes):
        assert all(line["device_seconds"] > 0 for line in lines)


ONE_FOR_EACH = {task: method for method, task in pairs(every=False) if support(method, task)["ray"] is None}
"""A method for every task."""


@pytest.mark.parametrize("task", TASKS)
def test_tasks(task, on_ray):
    """Every task, each with another method: state and metrics, also on validation samples and clients' own."""
    one, other = (run_of(ONE_FOR_EACH[task], task, *more).run() for more in ((), on_ray))
    assert same(one.server.state, other.server.state)
    for line in (one.metrics[-1], other.metrics[-1]):
        line.pop("seconds")
    assert one.metrics == other.metrics


def test_workers_read_what_is_read_as_needed(on_ray, tmp_path):
    write_files(tmp_path)
    data = ["data.name=own_data:on_disk", f"data.root={tmp_path}", "data.cache=1", "model.name=own_objective:Plain"]
    one, other = (Experiment(settings(*data, *SHORT, *more)).run().server.state for more in ((), on_ray))
    assert same(one, other)
