"""Width groups that a recipe keeps whole, and models that stay mostly whole by themselves."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedwidth.analysis.yardsticks import SMALLEST, yardsticks
from fedwidth.cli.runs.first_lines import explain_shares
from fedwidth.config.build import plan_key
from fedwidth.config.influence import identity
from fedwidth.errors import PlanError
from fedwidth.experiment import Experiment
from fedwidth.run.cache import Cache
from fedwidth.run.recorder import Result
from fedwidth.settings import ObjectiveSettings
from small_runs import small


def test_a_recipe_keeps_groups_whole() -> None:
    two = "model.options={hidden=[8, 6]}"
    free, kept = (Experiment(small(two, f"model.keep={keep}")) for keep in ("", "hidden.1"))
    assert list(free.plan.groups) == ["hidden.1", "hidden.3"]
    assert list(kept.plan.groups) == ["hidden.3"]
    assert kept.rounds.assign(kept.first_server(), [(0, 0.25)])[0].part.counts == {"hidden.3": 1}
    several = Experiment(small("model.options={hidden=[8, 6, 4]}", "model.keep=hidden.1 , hidden.5"))
    assert list(several.plan.groups) == ["hidden.3"]
    assert kept.run().metrics != free.run().metrics


def test_what_is_kept_makes_another_run_and_nothing_kept_the_same_as_ever() -> None:
    assert identity(small("model.keep=hidden.1")) != identity(small()) == identity(small("model.keep="))


def test_a_name_that_is_no_group_is_refused_before_training() -> None:
    with pytest.raises(PlanError, match="keep names 'hidden.9', but there is no such width group; there are: hidden.1"):
        Experiment(small("model.keep=hidden.9"))
    with pytest.raises(PlanError, match="nothing to slice"):
        Experiment(small("model.keep=*"))


def test_a_width_at_which_nothing_is_left_to_slice_is_named() -> None:
    said = "model.width is 1/64, and at that width the model has nothing to slice: .*size 1.*; give a wider one"
    with pytest.raises(PlanError, match=said):
        Experiment(small("model.width=1/64"))


@pytest.mark.parametrize("engine", ["serial", "processes", "vectorised"])
def test_a_model_that_everyone_trains_as_a_whole_needs_nothing_to_slice(engine: str) -> None:
    """One layer between inputs and classes: FedAvg, whatever the method, and no narrower model to be had."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def run(method: str) -> Result:
        settings = small("devices.capacities=a1", f"method.name={method}", f"engine={engine}", "workers=1")
        experiment = Experiment(settings, model=model)
        assert not experiment.plan.groups
        return experiment.run()

    found = run("fedrolex")
    assert found.metrics[-1]["global_accuracy"] > 0.5
    assert torch.equal(found.server.state["1.weight"], run("fedavg").server.state["1.weight"])
    with pytest.raises(PlanError, match="nothing to slice: .*model output"):
        Experiment(small(), model=model)


def test_runs_whose_devices_hold_all_of_a_model_do_not_hand_its_plan_to_those_that_do_not() -> None:
    cache = Cache()
    whole, narrow = (small(f"devices.capacities={mix}", "model.keep=*") for mix in ("a1", "a1-b1"))
    assert cache.plan(whole) is cache.plan(small("devices.capacities=1", "model.keep=*", "rounds=9"))
    with pytest.raises(PlanError, match="nothing to slice"):
        cache.plan(narrow)
    assert plan_key(whole) != plan_key(narrow) == plan_key(small("devices.capacities=a1-e1", "model.keep=*"))
    assert plan_key(whole) != plan_key(replace(whole, objective=ObjectiveSettings(name="multi-label")))


def test_the_smallest_model_for_all_may_be_too_small_to_slice() -> None:
    narrow = yardsticks(small("devices.capacities=a1-d1"))[SMALLEST]
    assert (narrow.model.options["hidden"], narrow.model.width) == ([8], 1 / 8)
    assert Experiment(narrow).plan.groups == {}


class Stubborn(nn.Module):
    """An operator without a rule holds all but the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.out = nn.Linear(64, 40), nn.Linear(40, 8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1))
        return self.out(torch.relu(self.last(torch.linalg.solve(torch.eye(40).to(x), x.mT).mT)))


def test_a_model_that_stays_mostly_whole_is_warned_about() -> None:
    with pytest.warns(UserWarning, match=r"at 0.25 a device holds 9\d% of the parameters: first .*no rule"):
        Experiment(small(), model=Stubborn())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Experiment(small("method.name=fedavg"), model=Stubborn())


@pytest.mark.parametrize("method", ["fedrolex", "fedbrb", "fedavg", "fedhm", "dsfl"])
def test_a_run_begins_with_what_devices_have_by_the_method_it_takes(method: str) -> None:
    experiment = Experiment(small(f"method.name={method}", "model.options={hidden=[16, 16]}"))
    title, header, *lines = explain_shares(experiment).splitlines()
    assert title == "what a device really has"
    assert header.split()[:2] == ["capacity", "parameters"]
    rows = {float(line.split()[0]): line.split()[1:] for line in lines[: len(experiment.rounds.enrolled)]}
    assert rows[1.0] == ["100.0%"] * 3
    for capacity in rows:
        (task,) = experiment.rounds.assign(experiment.first_server(), [(0, capacity)])
        sent = sum(tensor.numel() for tensor in task.part.cut(experiment.first_state, experiment.plan).values())
        full = sum(tensor.numel() for tensor in experiment.model.state_dict().values())
        assert rows[capacity][0] == f"{sent / full:.1%}"
    assert ("  the method gives every device the whole model" in lines) == (method == "fedavg")
