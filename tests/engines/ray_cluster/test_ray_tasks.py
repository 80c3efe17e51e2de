"""A real Ray: what comparing takes and what tasks ask for comes out of its workers as it does here, bit for bit.

Slow (it starts Ray): `make test-ray`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fedwidth.experiment import Experiment
from objective_runs import KINDS, METRIC, settings
from own_data import write_files
from small_runs import contents, same, small
from support_table import SHORT, pairs, run_of, support

ray = pytest.importorskip("ray", reason="Ray is not installed: make test-ray")
pytestmark = pytest.mark.slow

TESTS = str(Path(__file__).parents[2])
RATES = "devices.rates={1=2e6, '1/2'=1e6, '1/4'=4e5}"
COMPARING = {
    "validation": ["data.validation=0.2"],
    "validation alone": ["data.validation=0.2", "evaluation.test=false"],
    "capacities of one's own": ["devices.capacities=[1,1,0.5,0.5,0.25,0.25]"],
    "labels with weak devices": ["devices.correlate=labels", "devices.correlate_strength=0.8"],
    "few samples with weak devices": ["devices.correlate=few-samples", "data.partition=dirichlet"],
    "dropouts": ["devices.dropout=0.4"],
    "time on devices": [RATES, "devices.bandwidth={all=1e4}"],
    "a deadline": [RATES, "devices.bandwidth={all=1e4}", "devices.deadline=1.0"],
    "all of them": [
        "data.validation=0.2",
        "devices.capacities=[1,1,0.5,0.5,0.25,0.25]",
        "devices.correlate=many-samples",
        "devices.dropout=0.3",
        RATES,
        "devices.bandwidth={all=1e4}",
        "devices.deadline=1.0",
    ],
}
"""Settings that comparing takes."""


@pytest.fixture(scope="module")
def on_ray():
    """Settings of a run on a cluster of two workers, which find the modules of the tests."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([TESTS, *filter(None, [os.environ.get("PYTHONPATH")])]))
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    yield ("engine=ray", "ray.engine=serial", f"ray.address={cluster.address}")
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


@pytest.mark.parametrize(("method", "task"), pairs(every=False))
def test_tasks_and_methods(method, task, on_ray):
    if support(method, task)["ray"] is None:
        assert same(run_of(method, task).run().server.state, run_of(method, task, *on_ray).run().server.state)


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_of_every_objective(kind, on_ray):
    """Also on validation samples, on clients' own and at each width."""
    changes = ("rounds=2", "evaluation.every=2", *KINDS[kind])
    one, other = (Experiment(settings(*changes, *more)).run() for more in ((), on_ray))
    for record in (one.summary, other.summary, one.metrics[-1], other.metrics[-1]):
        record.pop("seconds")
    assert one.metrics[-1] == other.metrics[-1]
    name = METRIC.get(kind, "accuracy")
    for key in (f"global_{name}", f"validation_{name}", f"local_{name}", f"capacity_{name}"):
        assert other.metrics[-1][key] == one.metrics[-1][key]


def test_workers_read_what_is_read_as_needed(on_ray, tmp_path):
    write_files(tmp_path)
    data = ["data.name=own_data:on_disk", f"data.root={tmp_path}", "data.cache=1", "model.name=own_objective:Plain"]
    one, other = (Experiment(settings(*data, *SHORT, *more)).run().server.state for more in ((), on_ray))
    assert same(one, other)
