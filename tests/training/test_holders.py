"""An element that few clients hold moves less."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fedwidth
from fedwidth.cli.entry import run_command
from fedwidth.core.aggregation import finalise
from fedwidth.core.cohort import sum_cohorts
from fedwidth.core.submodel import extract, state_of
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from fedwidth.methods import methods
from fedwidth.run.lockstep import run_in_lockstep
from fedwidth.training.server.holders import damp
from small_runs import same, small

MODEL = nn.Sequential(nn.Linear(1, 4, bias=False), nn.Linear(4, 1, bias=False)).double()
PLAN = fedwidth.trace(MODEL, torch.randn(1, 1, dtype=torch.float64))


def closed(exponent):
    """A client of weight 3 with all four units and one of weight 1 with the first half: changes of 1 and of 5."""
    state = {name: torch.zeros_like(tensor) for name, tensor in state_of(MODEL).items()}
    updates = []
    for capacity, weight, change in ((1.0, 3.0, 1.0), (0.5, 1.0, 5.0)):
        index = fedwidth.method("heterofl").select(PLAN, capacity=capacity)
        updates.append(({n: t + change for n, t in extract(state, PLAN, index).items()}, index, weight))
    sums = sum_cohorts(updates, PLAN)
    return damp(state, finalise(state, sums, PLAN), sums, PLAN, exponent)["0.weight"].flatten()


@pytest.mark.parametrize(
    ("exponent", "alone"),
    [(1.0, 1.0), (0.0, 3 / 4), (0.5, (3 / 4) ** 0.5), (2.0, 4 / 3)],
)
def test_worked_by_hand(exponent, alone):
    # Held by both: (3 * 1 + 1 * 5) / 4 = 2 whatever the exponent. Held by one of weight 3 of 4:
    # 3 / (3^kappa 4^(1 - kappa)) = (3/4)^(1 - kappa).
    assert closed(exponent).tolist() == pytest.approx([2.0, 2.0, alone, alone])


def run(*changes):
    """The state after three rounds."""
    return Experiment(small("rounds=3", *changes)).run().server.state


def test_where_all_hold_everything_the_exponent_is_nothing():
    fair = ("method.name=fedavg", "server.label_rows=false")
    plain, damped = run(*fair), run(*fair, "server.holders_exponent=0")
    for name, tensor in plain.items():
        torch.testing.assert_close(tensor, damped[name])


@pytest.mark.parametrize("engine", ["vectorised", "cuda", "processes"])
def test_engines_agree(engine):
    changes = ("server.holders_exponent=0.5", "method.name=fedrolex", "workers=2")
    serial, other = run(*changes, "engine=serial"), run(*changes, f"engine={engine}")
    for name, tensor in serial.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-4, atol=1e-5)


def test_a_pack_gives_what_each_run_gives():
    settings = [small("rounds=3", "engine=vectorised", f"server.holders_exponent={number}") for number in (0, 0.5, 1)]
    data = Experiment(settings[0]).data
    alone = [Experiment(each, data=data).run() for each in settings]
    together = run_in_lockstep([Experiment(each, data=data) for each in settings])
    for one, other in zip(alone, together, strict=True):
        for name, tensor in one.server.state.items():
            torch.testing.assert_close(tensor, other.server.state[name], rtol=1e-4, atol=1e-5)
    assert not same(dict(together[0].server.state), dict(together[2].server.state))


OTHERWISE = [name for name, method in methods().items() if method.close is not None or not method.slices]


@pytest.mark.parametrize("change", [*(f"method.name={name}" for name in OTHERWISE), "local.name=scaffold"])
def test_a_method_that_does_not_average_over_holders_is_refused(change):
    with pytest.raises(OptionError, match="does not average over holders: with it only 1 is possible"):
        Experiment(small(change, "server.holders_exponent=0.5"))


def test_of_a_recipe_only_the_runs_that_are_wanted_are_refused(tmp_path, capsys):
    arguments = ["run", "--set", "server.holders_exponent=0.5", "--set", "rounds=1", "--set", "training.steps=1"]
    assert run_command([*arguments, "--only", "fedbrb", "--out", str(tmp_path / "a")]) == 2
    assert "FedBRB does not average over holders" in capsys.readouterr().err
    assert run_command([*arguments, "--only", "fedrolex", "--out", str(tmp_path / "b")]) == 0
