"""Adapters of a model: which layers get them, what is frozen, and that ranks are widths."""

from __future__ import annotations

import pytest
import torch
from adapter_models import base, convolutional, filled, rank_plan
from torch import nn

import fedwidth
from fedwidth.errors import OptionError, PlanError, SelectionError
from fedwidth.models import build

EXAMPLES = {"linear": (base, torch.randn(5, 4)), "convolution": (convolutional, torch.randn(5, 2, 9, 9))}
CHOICES = ("fedavg", "heterofl", "fedrolex", "feddropout", "fedcover", "fedstack", "fjord", "fedtile")


def test_a_new_adapter_changes_nothing_and_everything_else_is_frozen():
    model = base()
    adapted = fedwidth.adapt(model, rank=2)
    inputs = torch.randn(5, 4)
    assert torch.equal(adapted(inputs), model(inputs))
    trained = [name for name, parameter in adapted.named_parameters() if parameter.requires_grad]
    assert trained == [f"{n}.lora_{f}.default.weight" for n in (0, 2) for f in "AB"]  # not the last layer
    assert all(parameter.requires_grad for parameter in model.parameters())  # which was copied


def test_adapters_come_from_the_seed_alone():
    torch.manual_seed(1)
    first = fedwidth.adapt(base(), rank=2, seed=5).state_dict()
    before = torch.random.get_rng_state()
    again = fedwidth.adapt(base(), rank=2, seed=5).state_dict()
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = fedwidth.adapt(base(), rank=2, seed=6).state_dict()
    assert not torch.equal(first["0.lora_A.default.weight"], other["0.lora_A.default.weight"])


def test_targets_are_patterns_or_ends_of_names_as_in_peft():
    model = build("transformer", vocabulary=10, embedding=8, heads=2, head_size=4, hidden=8, layers=2)
    by_pattern = fedwidth.adapt(model, rank=2, targets=["layers.*.query.0"])
    by_end = fedwidth.adapt(model, rank=2, targets=["query.0"])
    names = [adapter.module for adapter in fedwidth.trace(by_pattern, torch.zeros(2, 3).long()).adapters]
    assert names == ["layers.0.attention.query.0", "layers.1.attention.query.0"]
    assert by_end.state_dict().keys() == by_pattern.state_dict().keys()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"targets": ["value"]}, "names no linear or convolution layer"),
        ({"targets": "0"}, "targets are a list"),
        ({"rank": 0}, "rank must be a whole number from 1 on"),
        ({"alpha": -1}, "alpha must be a number above 0"),
        ({"outside": "keep"}, "outside must be 'freeze' or 'drop'"),
        ({"train": ["head.*"]}, "has no such parameter"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(options, said):
    with pytest.raises(OptionError, match=said):
        fedwidth.adapt(base(), **options)


def test_parameters_to_be_trained_whole_stay_trained():
    adapted = fedwidth.adapt(base(), rank=2, train=["4.*"])
    assert adapted[4].weight.requires_grad
    assert adapted[4].bias.requires_grad


@pytest.mark.parametrize("kind", EXAMPLES)
def test_ranks_are_width_groups(kind):
    make, inputs = EXAMPLES[kind]
    adapted = fedwidth.adapt(make(), rank=4)
    plan = rank_plan(adapted, inputs)
    assert set(plan.groups) == plan.rank_groups
    assert all(group.size == 4 for group in plan.groups.values())
    for adapter in plan.adapters:
        (group,) = [g for g in plan.groups.values() if (adapter.down, 0) in g.members]
        assert group.members == ((adapter.down, 0), (adapter.up, 1))
    plan.check(filled(adapted), inputs)


@pytest.mark.parametrize("kind", EXAMPLES)
@pytest.mark.parametrize("name", CHOICES)
def test_a_client_of_any_rank_computes_what_the_global_model_does(kind, name):
    make, inputs = EXAMPLES[kind]
    adapted = filled(fedwidth.adapt(make(), rank=8, alpha=4)).double()
    inputs = inputs.double()
    plan = rank_plan(adapted, inputs)
    whole = adapted(inputs)
    for capacity in (1.0, 0.5, 1 / 8):
        index = fedwidth.method(name).select(plan, capacity=capacity, round=3, client=1, clients=3, seed=2)
        small = fedwidth.narrow(adapted, plan, index)
        torch.testing.assert_close(small(inputs), whole, rtol=0, atol=1e-12)
        sub = fedwidth.extract(fedwidth.state_of(adapted), plan, index)
        assert all(torch.equal(sub[n], t) for n, t in small.state_dict().items())


def test_with_drop_a_client_runs_its_own_ranks_alone():
    adapted = filled(fedwidth.adapt(base(), rank=4, outside="drop"))
    plan = rank_plan(adapted, torch.zeros(2, 4))
    index = fedwidth.method("heterofl").select(plan, capacity=0.5)
    sub = fedwidth.extract(fedwidth.state_of(adapted), plan, index)
    assert torch.equal(sub["0.base_layer.weight"], adapted[0].base_layer.weight)


def test_extract_and_merge_are_inverse_and_the_frozen_weights_keep_their_bits():
    adapted = filled(fedwidth.adapt(base(), rank=4))
    plan, state = rank_plan(adapted, torch.zeros(2, 4)), fedwidth.state_of(adapted)
    index = fedwidth.method("fedrolex").select(plan, capacity=0.5, round=3)
    sub = fedwidth.extract(state, plan, index)
    same = fedwidth.merge(state, [(sub, index, 0.3)], plan)
    assert all(torch.equal(same[name], state[name]) for name in state)
    for adapter in plan.adapters:
        sub[adapter.up] += 1.0
    new = fedwidth.merge(state, [(sub, index, 0.3)], plan)
    assert all(torch.equal(new[name], state[name]) for name in plan.untrained)
    again = fedwidth.extract(new, plan, index)
    assert all(torch.equal(again[name], sub[name]) for name in sub)


def test_an_update_may_leave_out_what_is_frozen_but_nothing_else():
    adapted = filled(fedwidth.adapt(base(), rank=4))
    plan, state = rank_plan(adapted, torch.zeros(2, 4)), fedwidth.state_of(adapted)
    index = fedwidth.Index.whole(plan)
    sub = {name: tensor for name, tensor in state.items() if name not in plan.untrained}
    new = fedwidth.merge(state, [(sub, index, 1.0)], plan)
    assert all(torch.equal(new[name], state[name]) for name in state)
    del sub["0.lora_A.default.weight"]
    with pytest.raises(fedwidth.FedwidthError, match="lacks '0.lora_A"):
        fedwidth.merge(state, [(sub, index, 1.0)], plan)


def test_widths_and_ranks_are_sliced_together_where_widths_are_not_kept():
    adapted = filled(fedwidth.adapt(base(), rank=4)).double()
    inputs = torch.randn(5, 4).double()
    plan, state = fedwidth.trace(adapted, inputs), fedwidth.state_of(adapted)
    index = fedwidth.Index.of_units(plan, {"0.lora_A.default": [1, 2], "0.base_layer": [0, 3, 5]})
    sub = fedwidth.extract(state, plan, index)
    rows, outside = [0, 3, 5], [0, 3]
    up, down = state["0.lora_B.default.weight"], state["0.lora_A.default.weight"]
    wanted = (state["0.base_layer.weight"] + up[:, outside] @ down[outside])[rows]
    torch.testing.assert_close(sub["0.base_layer.weight"], wanted)
    full = fedwidth.adapters.merge(adapted)
    kept = fedwidth.Index.of_units(
        fedwidth.trace(full, inputs), {"0": rows}
    )  # the merged model cut at the same widths computes the same
    small = fedwidth.narrow(full, kept.plan, kept)
    torch.testing.assert_close(fedwidth.narrow(adapted, plan, index)(inputs), small(inputs))


def test_units_that_are_chosen_tensor_by_tensor_are_refused():
    adapted = fedwidth.adapt(base(), rank=4)
    plan = rank_plan(adapted, torch.zeros(2, 4))
    counts = plan.counts(0.5)
    index = fedwidth.Index.of_tensors(plan, counts, lambda name, dim, group: torch.arange(2) + ("lora_A" in name))
    with pytest.raises(SelectionError, match="cannot choose ranks"):
        fedwidth.extract(fedwidth.state_of(adapted), plan, index)


def test_kinds_of_adapters_that_no_fold_stands_for_are_refused():
    adapted = fedwidth.adapt(base(), rank=4)
    adapted[0].lora_A["second"] = nn.Linear(4, 4, bias=False)
    with pytest.raises(PlanError, match="one at a time"):
        fedwidth.trace(adapted, torch.zeros(2, 4))


@pytest.mark.parametrize("kind", EXAMPLES)
def test_merged_and_unmerged_models_agree(kind):
    make, inputs = EXAMPLES[kind]
    adapted = filled(fedwidth.adapt(make(), rank=3, alpha=6)).double()
    merged = fedwidth.adapters.merge(adapted)
    assert merged.state_dict().keys() == make().state_dict().keys()
    torch.testing.assert_close(merged(inputs.double()), adapted(inputs.double()), rtol=0, atol=1e-12)
    assert torch.allclose(adapted[0].weight, merged[0].weight)  # for models that look at a layer's weight themselves
