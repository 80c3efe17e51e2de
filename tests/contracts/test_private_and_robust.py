"""The columns `private` and `robust` of the table of what trains what: every yes trains, and every no is refused.

A private run must not be the plain one, and is the same where its clients train as one batch; the same is asked of a
robust one. Ray's workers and worker processes get the tasks of single clients like any others
(tests/training/test_clipping.py).
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from engine_runs import WORKERS

from fedwidth.engines import ProcessEngine
from fedwidth.engines.ray.engine import RayEngine
from fedwidth.errors import OptionError
from fedwidth.methods import methods
from objective_runs import no_fallback
from played_cluster import PlayedCluster
from small_runs import same
from support_table import pairs, run_of, support

EVERYBODY = ("devices.per_round=4", "server.label_rows=false")
MORE = {
    "private": (*EVERYBODY, "devices.sampling=poisson", "privacy.noise=1", "privacy.accountant=rdp"),
    "robust": (*EVERYBODY, "server.robust=median"),
}
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


@cache
def plain(method, task):
    return run_of(method, task, *EVERYBODY).run().server.state


def trains_or_is_refused(method, task, column):
    answers = support(method, task)
    if (reason := answers[column]) is not None:
        with pytest.raises(OptionError) as refused:
            run_of(method, task, *MORE[column])
        assert reason in str(refused.value) or answers["serial"] == reason
        return
    result = run_of(method, task, *MORE[column]).run()
    facts = {"private": result.metrics[0].get("privacy"), "robust": result.metrics[0].get("robust")}
    assert facts[column] is not None
    found = result.server.state
    assert not same(found, plain(method, task))
    if answers["vectorised"] is None:
        with no_fallback():
            together = run_of(method, task, *MORE[column], "engine=vectorised").run().server.state
        for name, tensor in found.items():
            assert torch.allclose(tensor, together[name], **TOLERANCE), name


@pytest.mark.parametrize("column", MORE)
@pytest.mark.parametrize(("method", "task"), pairs(every=False))
def test_every_method_trains_or_is_refused(method, task, column):
    trains_or_is_refused(method, task, column)


@pytest.mark.slow
@pytest.mark.parametrize("column", MORE)
@pytest.mark.parametrize(("method", "task"), pairs(every=True))
def test_every_pair_trains_or_is_refused(method, task, column):
    trains_or_is_refused(method, task, column)


@pytest.mark.parametrize("column", MORE)
def test_workers_give_the_same_bits(column):
    """Worker processes, and Ray's workers."""
    alone = run_of("fedrolex", "classification", *MORE[column]).run().server.state
    run = run_of("fedrolex", "classification", *MORE[column])
    engine = ProcessEngine(run.trainer, WORKERS.number, start_pool=WORKERS.serve)
    assert same(alone, run.run(engine=engine).server.state)
    run = run_of("fedrolex", "classification", *MORE[column], "engine=ray", "ray.engine=serial")
    cluster = PlayedCluster({1.0: 2.0, 0.5: 1.0}, 2)
    engine = RayEngine(run.trainer, join=lambda settings: cluster, clock=cluster.clock)
    assert same(alone, run.run(engine=engine).server.state)


def test_some_methods_are_private_and_most_that_hold_slices_are_robust():
    yes = {column: {m for m in methods() if support(m, "classification")[column] is None} for column in MORE}
    adapters = {"fedit", "ffalora", "rolora"}
    assert yes["private"] - adapters == {"fedavg", "fedprox", "fedrolex", "heterofl", "fjord", "fedimportance"}
    assert yes["robust"] == yes["private"] | {
        "fedcover",
        "feddropout",
        "fedecover",
        "fedladder",
        "fedminoccurances",
        "fedmosaic",
        "fedstack",
    }
