"""FedTile: tied copies compute what FedAvg at the tile's width does; without copies it is FedRolex."""

from __future__ import annotations

import pytest
import torch

import fedwidth
from fedwidth.data import from_tensors
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from fedwidth.methods import Beginning, Closing, method
from fedwidth.methods.fedtile import strength
from fedwidth.plan.axis import Units
from hand_plans import plan_of
from small_runs import same, small

ALL_QUARTER = ["devices.capacities=c1", "training.scaler=false", "rounds=6", "data.partition_options={per_client=10}"]


def double(settings):
    """The run of these settings in double precision."""
    made = Experiment(settings)
    splits = [(made.data.transform(s.inputs).double(), s.targets) for s in (made.data.train, made.data.test)]
    data = from_tensors(*splits[0], *splits[1], classes=made.data.classes)
    return Experiment(settings, model=made.model.double(), data=data, partition=made.partition)


MODELS = {
    "mlp": ["model.name=mlp", "model.options={hidden=[8]}"],
    "cnn": ["model.name=cnn", "model.options={widths=[8,8,16]}"],
}


@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
@pytest.mark.parametrize("engine", ["serial", "cuda"])
def test_with_ties_and_one_width_it_is_fedavg_at_that_width(model, engine):
    wide = double(small(*ALL_QUARTER, *model, f"engine={engine}", "method.name=fedtile", "method.options={tied=1.0}"))
    # The narrow model: the first quarter of the wide one's units, trained by everyone as a whole.
    first = method("heterofl").select(wide.plan, capacity=0.25)
    tile = fedwidth.narrow(wide.model, wide.plan, first)
    settings = small(*ALL_QUARTER, *model, f"engine={engine}", "method.name=fedavg", "devices.capacities=a1")
    narrow = Experiment(settings, model=tile, data=wide.data, partition=wide.partition)
    tiled, plain = wide.run().server.state, narrow.run().server.state
    for copy in range(4):  # every aligned block of the wide model is the narrow one
        units = {g: torch.arange(group.size // 4) + copy * (group.size // 4) for g, group in wide.plan.groups.items()}
        found = fedwidth.extract(tiled, wide.plan, fedwidth.Index.of_units(wide.plan, units))
        for name, tensor in plain.items():
            torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-6)
    assert max(float((plain[n] - t).abs().max()) for n, t in narrow.first_state.items()) > 1e-3


def test_where_a_client_has_full_width_it_is_fedrolex_bit_for_bit():
    states = [
        Experiment(small(f"method.name={name}", "devices.capacities=a1-c1", "rounds=4")).run().server.state
        for name in ("fedrolex", "fedtile")
    ]
    assert same(*states)


def test_without_ties_only_the_start_differs_from_fedrolex():
    free = Experiment(small(*ALL_QUARTER, "method.name=fedtile", "method.options={tied=0}"))
    rolex = Experiment(small(*ALL_QUARTER, "method.name=fedrolex"))
    rolex.first_state = free.first_state
    assert same(free.run().server.state, rolex.run().server.state)


def test_a_mix_of_widths_is_averaged_in_the_tile():
    # Four units tiled by two. The client of 1/2 holds units 0, 1 and moves them by (1, 2); the client of 1/4 holds unit
    # 0 and moves it by 3. Of the tile's first unit the mean is (1 + 3) / 2 = 2, of the second 2; copies 2 and 3 follow.
    plan = plan_of({"w": (Units("g", 4),)})
    chosen = method("fedtile")
    state = chosen.first_state(
        Beginning({"w": torch.tensor([10.0, 20.0, 0.0, 0.0])}, plan, (0.5, 0.25), 0, chosen.values)
    )
    assert state["w"].tolist() == [10.0, 20.0, 10.0, 20.0]
    half, quarter = (chosen.select(plan, capacity=c) for c in (0.5, 0.25))
    updates = [({"w": torch.tensor([11.0, 22.0])}, half, 1.0), ({"w": torch.tensor([13.0])}, quarter, 1.0)]
    sums = fedwidth.core.cohort.sum_cohorts(updates, plan)
    at = {"round": 0, "rounds": 4, "enrolled": (0.5, 0.25), "options": chosen.values}
    assert chosen.finish(Closing(state, sums, plan, **at))["w"].tolist() == [12.0, 22.0, 12.0, 22.0]
    # Round 3 of 4: ties have ended (0.75 of the run), so copies stay as they are.
    assert chosen.finish(Closing(state, sums, plan, **at | {"round": 3}))["w"].tolist() == [12.0, 22.0, 10.0, 20.0]
    # Half loosened: copies go half the way.
    loose = method("fedtile", tied=0, fade=2)
    found = loose.finish(Closing(state, sums, plan, **at | {"round": 1, "options": loose.values}))
    assert found["w"].tolist() == [12.0, 22.0, 11.0, 21.0]


def test_a_client_wider_than_the_tile_counts_every_copy_it_holds():
    # Tile of one unit; a client of 1/2 moves its two copies by 1 and 3: all four go by 2.
    plan = plan_of({"w": (Units("g", 4),)})
    chosen = method("fedtile", tile="1/4")
    state = {"w": torch.full((4,), 5.0)}
    sums = fedwidth.core.cohort.sum_cohorts(
        [({"w": torch.tensor([6.0, 8.0])}, chosen.select(plan, capacity=0.5), 1.0)], plan
    )
    closing = Closing(state, sums, plan, round=0, rounds=4, enrolled=(0.5,), options=chosen.values)
    assert chosen.finish(closing)["w"].tolist() == [7.0] * 4


def test_widths_that_do_not_divide_are_refused():
    with pytest.raises(
        OptionError, match=r"fedtile cuts layers into equal blocks, but at width 0.4 group .* keeps 3 of 8"
    ):
        Experiment(small("method.name=fedtile", "devices.capacities=0.4:1"))


@pytest.mark.parametrize("value", [0, "2", True, 1.5, [0.5]])
def test_a_tile_is_a_width(value):
    with pytest.raises(
        OptionError, match='fedtile option tile must be a width above 0 and at most 1, e.g. 0.25 or "1/4"'
    ):
        method("fedtile", tile=value)


def test_when_ties_end():
    assert [strength({"tied": 0.5, "fade": 0}, round, 10) for round in (0, 4, 5, 9)] == [1.0, 1.0, 0.0, 0.0]
    assert [strength({"tied": 1.0, "fade": 0}, round, 10) for round in (0, 9)] == [1.0, 1.0]
    assert [strength({"tied": 0.2, "fade": 0.4}, round, 10) for round in (1, 2, 4, 6)] == [1.0, 1.0, 0.5, 0.0]


def test_ties_go_on_after_a_resume(tmp_path):
    changes = [*ALL_QUARTER, "method.name=fedtile", "checkpoint_every=1"]
    whole = Experiment(small(*changes)).run(tmp_path / "whole").server.state

    class Enough(Exception):
        pass

    def leave(line):
        if line["round"] == 3:
            raise Enough

    with pytest.raises(Enough):
        Experiment(small(*changes)).run(tmp_path / "parts", on_round=leave)
    assert same(whole, Experiment(small(*changes)).run(tmp_path / "parts", resume=True).server.state)
