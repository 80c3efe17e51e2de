"""Robust sums: medians and trimmed means by hand, who may not be missed, and what does not go with them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fedwidth
from fedwidth.config.read import read_settings
from fedwidth.core.cohort import CohortSum
from fedwidth.core.submodel import state_of
from fedwidth.core.updates import Update
from fedwidth.engines.packed.limits import why_not_pack
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from fedwidth.methods import method
from fedwidth.settings import ServerSettings
from fedwidth.training.server.robust import robust_average
from small_runs import RECIPE, same, small

WAYS = ("trimmed", "median", "norm-bounded")


def round_of(capacities, *, name="heterofl", dtype=torch.float64):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)).to(dtype)
    plan = fedwidth.trace(model, torch.zeros(2, 3, dtype=dtype))
    tasks = method(name).assign(plan, list(enumerate(capacities)), 0, seed=3)
    return plan, state_of(model), [replace(task, single=True) for task in tasks]


def sums_of(plan, state, tasks, change, labels=None):
    """Of clients of which the m-th has changed every element by change(m, the tensor's name)."""
    found = []
    for number, task in enumerate(tasks):
        sub = {name: tensor + change(number, tensor) for name, tensor in task.part.cut(state, plan).items()}
        found.append(CohortSum(task.index))
        found[-1].add(Update(sub, task.index, client=task.client, labels=labels(number) if labels else None))
    return found


def test_averages_by_hand():
    """Five clients change every element by -100, 1, 2, 3 and 10: the median is 2; without one at each end the mean is 2
    too; without a share of 0.3, two at each end, 2; of four (without the 10) the median is 1.5."""
    changes = (-100.0, 1.0, 2.0, 3.0, 10.0)
    for robust, share, clients, expected in [
        ("median", 0.2, 5, 2.0),
        ("trimmed", 0.2, 5, 2.0),
        ("trimmed", 0.3, 5, 2.0),
        ("median", 0.2, 4, 1.5),
        ("trimmed", 0.1, 4, 1.5),
    ]:
        plan, state, tasks = round_of((1.0,) * clients)
        sums = sums_of(plan, state, tasks, lambda number, _: changes[number])
        given = ServerSettings(robust=robust, robust_share=share)
        new, kept = robust_average(state, sums, tasks, plan, given)
        assert kept.share == 0
        for name, tensor in state.items():
            assert torch.allclose(new[name], tensor + expected, rtol=0, atol=1e-12)


def test_norms_are_bounded_by_the_median_of_the_round():
    """All point the same way with norms 1, 2 and 9 (times the same): bounded at the median, 1, 2 and 2, mean 5/3."""
    plan, state, tasks = round_of((1.0,) * 3)
    sums = sums_of(plan, state, tasks, lambda number, _: (1.0, 2.0, 9.0)[number])
    new, _ = robust_average(state, sums, tasks, plan, ServerSettings(robust="norm-bounded", robust_bound=1.0))
    for name, tensor in state.items():
        assert torch.allclose(new[name], tensor + 5 / 3)


@pytest.mark.parametrize("robust", WAYS)
def test_elements_of_fewer_than_three_holders_keep_their_bits_and_are_counted(robust):
    """Two of full width and three of half: of 8 hidden units 4 have two holders. 4 rows of 3 weights and 4 biases of
    the first layer, 2 x 4 weights of the second: 24 elements of all 50 stay."""
    plan, state, tasks = round_of((1.0, 1.0, 0.5, 0.5, 0.5))
    sums = sums_of(plan, state, tasks, lambda number, tensor: 0.1 * (number + 1))
    new, kept = robust_average(state, sums, tasks, plan, ServerSettings(robust=robust))
    assert (kept.elements, kept.held) == (24, 50)
    half = tasks[2].index
    for name, tensor in state.items():
        touched = torch.zeros(tensor.shape, dtype=torch.bool)
        touched.numpy()[np.ix_(*(part.numpy() for part in half[name]))] = True
        assert torch.equal(new[name] != tensor, touched)


@pytest.mark.parametrize("robust", WAYS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_training_that_changes_nothing_changes_nothing(robust, dtype):
    plan, state, tasks = round_of((1.0, 1.0, 0.5, 0.5, 0.5, 0.25), dtype=dtype)
    sums = sums_of(plan, state, tasks, lambda *_: 0.0)
    new, _ = robust_average(state, sums, tasks, plan, ServerSettings(robust=robust))
    assert same(new, state)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=5, max_size=9), st.floats(-1e6, 1e6), st.sampled_from(["median", "trimmed"]))
def test_one_hostile_client_cannot_leave_the_range_of_the_others(changes, hostile, robust):
    plan, state, tasks = round_of((1.0,) * (len(changes) + 1))
    sums = sums_of(plan, state, tasks, lambda number, _: [*changes, hostile][number])
    new, _ = robust_average(state, sums, tasks, plan, ServerSettings(robust=robust, robust_share=0.05))
    for name, tensor in state.items():
        moved = new[name] - tensor
        assert min(changes) - 1e-9 <= float(moved.min()) <= float(moved.max()) <= max(changes) + 1e-9


def test_rows_of_classes_that_a_client_lacks_do_not_count():
    """Label 0 has four holders and label 1 two: of the last layer the second row and its bias stay."""
    plan, state, tasks = round_of((1.0,) * 4)
    assert plan.label_axes
    sums = sums_of(plan, state, tasks, lambda *_: 1.0, labels=lambda number: [0] if number < 2 else [0, 1])
    new, kept = robust_average(state, sums, tasks, plan, ServerSettings(robust="median"))
    assert torch.allclose(new["2.weight"][0], state["2.weight"][0] + 1)
    assert torch.equal(new["2.weight"][1], state["2.weight"][1])
    assert kept.elements == 9


def test_where_all_hold_everything_and_nobody_is_trimmed_it_is_the_mean():
    """norm-bounded with a bound that nobody reaches."""
    plan, state, tasks = round_of((1.0,) * 4)
    draws = torch.Generator().manual_seed(1)
    sums = sums_of(plan, state, tasks, lambda _, t: torch.randn(t.shape, generator=draws, dtype=t.dtype))
    new, _ = robust_average(state, sums, tasks, plan, ServerSettings(robust="norm-bounded", robust_bound=100.0))
    mean = method("fedavg").aggregate(state, sums, plan)
    for name in state:
        assert torch.allclose(new[name], mean[name], rtol=0, atol=1e-14)


@pytest.mark.parametrize("robust", WAYS)
def test_a_run_on_two_engines_reports_what_stayed(robust):
    more = (f"server.robust={robust}", "devices.per_round=6", "rounds=2")
    one = Experiment(small(*more)).run()
    other = Experiment(small(*more, "engine=vectorised")).run()
    assert 0 < one.metrics[0]["robust"]["kept_weights"] < 1
    assert one.metrics[0]["robust"] == other.metrics[0]["robust"]
    for name, tensor in one.server.state.items():
        assert torch.allclose(tensor, other.server.state[name], rtol=1e-4, atol=1e-5)
    assert not same(one.server.state, Experiment(small(*more[1:])).run().server.state)


def test_methods_that_remember_go_on_remembering():
    run = Experiment(small("server.robust=median", "method.name=fedminoccurances", "devices.per_round=6", "rounds=2"))
    assert int(run.run().server.memory["clients"]) == 6


def test_clipping_and_screening_come_before():
    more = ("devices.per_round=6", "rounds=2", "server.clip=1", "server.screen=true", "server.robust=trimmed")
    assert "clipped" in Experiment(small(*more)).run().metrics[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["server.robust=krum"], "server.robust must be one of none, trimmed, median, norm-bounded"),
        (["server.robust_share=0.5"], "server.robust_share must be above 0 and below 0.5, not 0.5"),
        (["server.robust=trimmed", "server.robust_share=0"], "server.robust_share must be above 0"),
        (["server.robust_bound=0"], "server.robust_bound must be above 0"),
        (["server.robust=median", "devices.per_round=2"], "devices.per_round is 2, .* fewer than 3 clients hold stays"),
        (["server.robust=median", "server.weighting=samples"], "server.weighting must be equal with server.robust"),
        (["server.robust=median", "server.holders_exponent=0"], "server.holders_exponent must be 1 with server.robust"),
        (["server.robust=norm-bounded", "server.clip=2"], "server.clip must be 0 with server.robust = norm-bounded"),
        (["server.robust=median", "secure.enabled=true", "secure.min_clients=2"], "the server sees no single update"),
        (["server.robust=median", "method.name=fedbrb"], "FedBRB has no robust sums: its server closes"),
        (["server.robust=median", "method.name=scaffold"], "SCAFFOLD has no robust sums: its clients report more"),
        (["server.robust=median", "method.name=feddf"], "FedDF has no robust sums: "),
        (["server.robust=median", "method.name=prism"], "PriSM has no robust sums: its clients hold no slices"),
    ],
)
def test_what_does_not_go_with_robust_sums_is_refused_in_one_line(changes, message):
    with pytest.raises(OptionError, match=message) as refused:
        read_settings(RECIPE, changes)
    assert "\n" not in str(refused.value)


def test_a_pack_keeps_no_single_updates():
    trainer = Experiment(small("server.robust=median", "engine=vectorised")).trainer
    assert why_not_pack([trainer] * 2) == "server.robust compares single updates, which a pack does not keep"
