"""The plan of every architecture of the zoo: expected groups, the permutation law, and that the law can fail."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import zoo
from fedwidth.errors import PlanError
from fedwidth.plan.axis import Axis, Concat, Fixed, Product, Units, groups_of
from fedwidth.plan.permutation import PermutationLaw
from fedwidth.plan.plan import Plan
from fedwidth.plan.shares import share, why_so_large
from fedwidth.plan.trace import trace
from zoo.problem_pictures import ShuffledHalves


def case_of(name: str) -> zoo.Case:
    if name in zoo.HUGGING_FACE:
        pytest.importorskip("transformers")
    return zoo.PLANNED[name]


def planned(name: str, heads: str = "within") -> tuple[zoo.Case, torch.nn.Module, object, Plan]:
    case = case_of(name)
    model, inputs = zoo.build(case.full), zoo.doubled(case.inputs())
    return case, model, inputs, trace(model, inputs, heads=heads, output=case.output)


@pytest.mark.parametrize("name", zoo.PLANNED)
def test_the_expected_groups_are_there(name: str) -> None:
    case, model, _, plan = planned(name)
    assert sorted(group.size for group in plan.groups.values()) == case.groups
    assert len(plan.couplings) == case.couplings
    assert not plan.unknown_operators
    for name_, shape in plan.shapes.items():
        tensor = dict(model.named_parameters(remove_duplicate=False)) | dict(
            model.named_buffers(remove_duplicate=False)
        )
        assert tuple(tensor[name_].shape) == shape
    for group in plan.groups.values():
        assert group.size > 1
        assert len(group.members) >= 2
        assert all(group.name in groups_of(plan.axes[tensor][dim]) for tensor, dim in group.members)


@pytest.mark.parametrize("name", [name for name, case in zoo.PLANNED.items() if case.whole_groups])
def test_whole_heads_are_groups(name: str) -> None:
    case, model, inputs, plan = planned(name, heads="whole")
    assert sorted(group.size for group in plan.groups.values()) == case.whole_groups
    plan.check(model, inputs, output=case.output)


@pytest.mark.parametrize("name", zoo.PLANNED)
def test_the_permutation_law_holds_and_notices_a_missing_member(name: str) -> None:
    case, model, inputs, plan = planned(name)
    plan.check(model, inputs, output=case.output)
    laws = [PermutationLaw(plan, model, inputs, case.output, training=training) for training in (False, True)]
    for group in plan.groups.values():
        for member in dict.fromkeys(tensor for tensor, _ in group.members):
            if member.endswith(case.silent or ("\0",)):
                continue
            twins = [n for n in plan.axes if plan.tied.get(n, n) == plan.tied.get(member, member)]
            noticed = (law.error(group.name, without=twins) > 10 * law.tolerance for law in laws)
            assert any(noticed), (group.name, member)


@pytest.mark.parametrize("name", zoo.PROBLEMS)
def test_half_of_a_problem_case_has_at_most_a_third_of_its_parameters(name: str) -> None:
    case, _, _, plan = planned(name)
    found = share(plan, 0.5).parameters
    counts = [sum(p.numel() for p in zoo.build(make).parameters()) for make in (case.half, case.full)]
    assert found == counts[0] / counts[1]
    assert found <= 0.34


def test_a_case_that_stays_large_says_why() -> None:
    for name in (name for name, case in zoo.PLANNED.items() if case.stays):
        case, _, _, plan = planned(name)
        assert share(plan, 0.5).parameters > 0.34
        assert any(case.stays in line for line in why_so_large(plan, share(plan, 0.5)))


def test_shuffled_halves_need_factors_of_two() -> None:
    # 58 channels that pass are 29 and 29 after the first shuffle, which the next one cannot halve; 64 are 32, 16, 8.
    shares = {}
    for width in (116, 128):
        model = ShuffledHalves(width, blocks=3)
        plan = trace(model, zoo.PROBLEMS["shuffled-halves"].inputs())
        plan.check(model, zoo.PROBLEMS["shuffled-halves"].inputs())
        shares[width] = share(plan, 0.5)
    assert shares[128].parameters < 0.34
    assert shares[116].parameters > 0.6
    assert "does not follow the width" in str(trace(ShuffledHalves(116, 3), torch.randn(2, 3, 8, 8)))


@pytest.mark.parametrize("name", ["mlp", "resnet-bn", "densenet", "vit", "lstm", "mixture"])
def test_a_wrong_plan_is_refused_by_name(name: str) -> None:
    _, model, inputs, plan = planned(name)
    for group in plan.groups.values():
        tensor, dim = group.members[-1]
        broken = without(plan, tensor, dim, group.name)
        with pytest.raises(PlanError, match=f"group '{group.name}' breaks .*'{tensor}' .*is missing from it"):
            broken.check(model, inputs)


def test_a_member_too_many_is_named() -> None:
    _, model, inputs, plan = planned("mlp")
    (first, size), (second, _) = ((g.name, g.size) for g in plan.groups.values())
    axes = dict(plan.axes)
    axes["layers.1.weight"] = (axes["layers.1.weight"][0], Concat((Units(first, size), Fixed(48 - size, "rest"))))
    members = (*plan.groups[first].members, ("layers.1.weight", 1))
    assert second != first
    broken = replace(plan, axes=axes, groups=dict(plan.groups) | {first: replace(plan.groups[first], members=members)})
    with pytest.raises(PlanError, match="group 'layers.1' breaks"):
        broken.check(model, inputs)


def without(plan: Plan, tensor: str, dim: int, group: str) -> Plan:
    """The plan with one member forgotten."""

    def forget(axis: Axis) -> Axis:
        match axis:
            case Units(name, size):
                return Fixed(size, "forgotten") if name == group else axis
            case Fixed():
                return axis
            case Product(parts):
                return Product(tuple(map(forget, parts)))
            case Concat(parts):
                return Concat(tuple(map(forget, parts)))

    axes = {
        name: tuple(forget(a) if (name, d) == (tensor, dim) else a for d, a in enumerate(own))
        for name, own in plan.axes.items()
    }
    return replace(plan, axes=axes)


def test_classifier_rows_are_the_label_axes() -> None:
    expected = {
        "mlp": {("out.weight", 0), ("out.bias", 0)},
        "unet": {("out.weight", 0), ("out.bias", 0)},
        "tied-lm": {("embedding.weight", 0), ("out.weight", 0), ("out.bias", 0)},
        "lstm": {("embedding.weight", 0), ("out.weight", 0), ("out.bias", 0)},
        "vit": {("head.weight", 0), ("head.bias", 0)},
    }
    for name, axes in expected.items():
        assert set(planned(name)[3].label_axes) == axes


def test_names_are_those_of_the_layers_that_make_the_width() -> None:
    assert list(planned("cnn-nchw")[3].groups) == ["conv1", "conv2", "fc1"]
    assert list(planned("unet")[3].groups) == ["down1", "down2", "up", "merge"]
    assert set(planned("vit")[3].groups) == {"patch", "attention.qkv", "fc1"}
    assert list(planned("lstm")[3].groups) == ["embedding", "rnn", "rnn#2"]
