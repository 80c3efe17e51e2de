"""Narrow modules against the class built at that width, the original, and masking."""

from __future__ import annotations

from contextlib import nullcontext
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

import zoo
from fedwidth.core.index import Index
from fedwidth.core.narrow import narrow, skeleton
from fedwidth.data import from_tensors
from fedwidth.errors import PlanError
from fedwidth.experiment import Experiment
from fedwidth.plan import trace
from fedwidth.plan.plan import Plan
from fedwidth.settings import DataSettings, DeviceSettings, EvaluationSettings, Settings


def random_index(plan: Plan, capacity: float, seed: int = 0) -> Index:
    draw = torch.Generator().manual_seed(seed)
    counts = plan.counts(capacity)
    return Index.of_units(
        plan, {name: torch.randperm(plan.groups[name].size, generator=draw)[:n] for name, n in counts.items()}
    )


def tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))


def assert_same_as_class(plan: Plan, small: nn.Module, make: zoo.Build, inputs: object) -> None:
    """The narrow module is the class built at that width: same state, same attributes, same output."""
    unread = {name for name, _, reason in plan.frozen() if reason == "not used in the forward pass"}
    assert all("inv_freq" in name for name in unread)
    reference = zoo.build(make, seed=7)
    reference.load_state_dict(small.state_dict(), strict=True)
    mine, its = ({n: t for n, t in tensors(model).items() if n not in unread} for model in (small, reference))
    for name in plan.optional - unread:  # rotary frequencies are not in the state
        its[name].copy_(mine[name])
    assert {n: t.shape for n, t in mine.items()} == {n: t.shape for n, t in its.items()}
    for training in (True, False):
        found = []
        for model in (small, reference):
            torch.manual_seed(0)
            with torch.no_grad():
                found.append(zoo.run(model.train(training), inputs))
        torch.testing.assert_close(*found, rtol=1e-9, atol=1e-11)
    for (name, module), (_, other) in zip(small.named_modules(), reference.named_modules(), strict=True):
        for attribute, value in vars(other).items():
            if type(value) in (int, float, tuple) and "transformers" not in type(module).__module__:
                assert getattr(module, attribute) == value, f"{name}.{attribute}"


@pytest.mark.parametrize("name", zoo.PLANNED)
def test_half_width_is_the_class_built_at_half_width(name: str) -> None:
    model, plan, inputs = zoo.traced(name)
    assert_same_as_class(plan, narrow(model, plan, random_index(plan, 0.5)), zoo.PLANNED[name].half, inputs)


@pytest.mark.parametrize("name", [name for name, case in zoo.PLANNED.items() if case.whole])
def test_half_the_heads_is_the_class_built_with_half_the_heads(name: str) -> None:
    model, plan, inputs = zoo.traced(name, heads="whole")
    assert_same_as_class(plan, narrow(model, plan, random_index(plan, 0.5)), zoo.PLANNED[name].whole, inputs)


@pytest.mark.parametrize("name", zoo.PLANNED)
def test_full_width_is_the_original_bit_for_bit(name: str) -> None:
    model, plan, inputs = zoo.traced(name)
    before = {key: value.clone() for key, value in tensors(model).items()}
    copy = narrow(model, plan, Index.whole(plan))
    assert all(torch.equal(value, tensors(model)[key]) for key, value in before.items())
    assert all(torch.equal(value, before[key]) for key, value in tensors(copy).items())
    assert {v.data_ptr() for v in tensors(copy).values() if v.numel()}.isdisjoint(
        v.data_ptr() for v in tensors(model).values()
    )
    with torch.no_grad():
        assert torch.equal(zoo.run(copy, inputs), zoo.run(model, inputs))


@pytest.mark.parametrize("name", zoo.PLANNED)
def test_uneven_widths_train(name: str) -> None:
    model, plan, inputs = zoo.traced(name)
    torch.manual_seed(0)
    index = random_index(plan, 0.27)
    small = narrow(model.train(), plan, index)
    assert small.training
    assert {n: tuple(t.shape) for n, t in tensors(small).items()} == plan.narrow_shapes(index.counts)
    assert sum(t.numel() for t in tensors(small).values()) < sum(t.numel() for t in tensors(model).values())
    zoo.run(small, inputs).square().sum().backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in small.parameters())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("name", [name for name, case in zoo.ZOO.items() if case.maskable])
@pytest.mark.parametrize("capacity", [0.27, 0.75])
def test_narrow_equals_the_full_model_with_dropped_units_zeroed(name: str, capacity: float) -> None:
    model, plan, inputs = zoo.traced(name)
    index = random_index(plan, capacity)
    masked = deepcopy(model)
    with torch.no_grad():
        for tensor_name, tensor in tensors(masked).items():
            for dim, kept in enumerate(index[tensor_name]):
                drop = torch.ones(tensor.shape[dim], dtype=torch.bool)
                drop[kept] = False
                tensor.index_fill_(dim, drop.nonzero().flatten(), 0)
        expected = zoo.run(masked, inputs)
        torch.testing.assert_close(zoo.run(narrow(model, plan, index), inputs), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["tied-lm", "gpt2", "llama", "t5"])
def test_tied_weights_stay_tied(name: str) -> None:
    model, plan, _ = zoo.traced(name)
    assert plan.tied
    small = tensors(narrow(model, plan, random_index(plan, 0.5)))
    for second, first in plan.tied.items():
        assert small[second] is small[first]


def test_buffers_are_sliced_with_their_group() -> None:
    model, plan, _ = zoo.traced("mixture")
    index = random_index(plan, 0.5)
    small = narrow(model, plan, index)
    assert torch.equal(small.gain, model.gain[index["gain"][0]])
    assert len(small.gain) == 12


def test_flags_and_dtypes_are_kept() -> None:
    model, plan, _ = zoo.traced("resnet-bn")
    model.stem.weight.requires_grad_(False)
    model.blocks[1].train()
    small = narrow(model, plan, random_index(plan, 0.5))
    assert not small.stem.weight.requires_grad
    assert small.fc.weight.requires_grad
    assert [m.training for m in small.modules()] == [m.training for m in model.modules()]
    assert {t.dtype for t in tensors(small).values()} == {torch.float64, torch.int64}
    assert narrow(model.half(), plan, random_index(plan, 0.5)).stem.weight.dtype == torch.float16


def test_different_positions_per_tensor_need_only_equal_counts() -> None:
    model, plan, inputs = zoo.traced("mlp")
    counts = plan.counts(0.5)
    draw = torch.Generator().manual_seed(3)
    index = Index.of_tensors(
        plan, counts, lambda name, dim, group: torch.randperm(plan.groups[group].size, generator=draw)[: counts[group]]
    )
    small = narrow(model, plan, index)
    assert zoo.run(small, inputs).shape == (2, 10)
    assert torch.equal(small.layers[1].bias, model.layers[1].bias[index["layers.1.bias"][0]])


def test_a_skeleton_has_the_shapes_and_copies_no_weights() -> None:
    model, plan, _ = zoo.traced("vit")
    counts = plan.counts(0.5)
    small = skeleton(model, plan, counts)
    assert {n: tuple(t.shape) for n, t in tensors(small).items()} == plan.narrow_shapes(counts)
    assert (small.attention.size, small.attention.heads) == (4, 4)
    assert small.attention.scale == 4**-0.5
    assert (model.attention.size, model.attention.scale) == (8, 8**-0.5)


def test_what_autograd_left_on_a_module_does_not_matter() -> None:
    model, plan, inputs = zoo.traced("mlp")
    model.last = zoo.run(model, inputs)
    assert zoo.run(narrow(model, plan, random_index(plan, 0.5)), inputs).shape == (2, 10)


def test_another_model_is_refused() -> None:
    _, plan, _ = zoo.traced("mlp")
    other = zoo.build(lambda: zoo.MLP(16, 13))
    with pytest.raises(PlanError, match=r"does not fit the plan: 'layers.3.weight' has shape"):
        narrow(other, plan, random_index(plan, 0.5))
    with pytest.raises(PlanError, match="does not fit the plan"):
        narrow(nn.Linear(2, 2), plan, random_index(plan, 0.5))


def test_an_attribute_changed_since_the_trace_is_refused() -> None:
    model, plan, _ = zoo.traced("vit")
    model.attention.size = 16
    with pytest.raises(PlanError, match=r"'attention.size' is not 8"):
        skeleton(model, plan, plan.counts(0.5))


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"encoder.layers.0.self_attn.in_proj_weight": 4}, "4 times as many"),
        ({"embedding": 33}, "1 to 32 units, not 33"),
        ({"embedding": 0}, "1 to 32 units, not 0"),
        ({"nothing": 1}, "no width group 'nothing'"),
    ],
)
def test_impossible_counts_are_refused(counts: dict[str, int], message: str) -> None:
    model, plan, _ = zoo.traced("transformer-encoder")
    with pytest.raises(PlanError, match=message):
        skeleton(model, plan, counts)


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # is slower on processors
def test_a_projection_as_wide_as_its_state_is_refused_before_a_run_begins() -> None:
    class Projected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(8, 16, proj_size=6, batch_first=True)
            self.out = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.rnn(x)[0][:, -1])

    x, y = torch.randn(60, 7, 8), torch.arange(60) % 3
    plan = trace(Projected(), x[:2])
    message = "'rnn' would have proj_size 1 and hidden_size 1 in a model this narrow, and PyTorch needs proj_size <"
    with pytest.raises(PlanError, match=message):
        skeleton(Projected(), plan, 1 / 16)
    assert skeleton(Projected(), plan, 1 / 4).rnn.proj_size == 1
    for capacities, measured in (("1:1 1/4:1", 1 / 4), ("1:1 1/16:1", 1), ("1:1", 1 / 16)):
        devices, evaluation = DeviceSettings(capacities, per_round=2), EvaluationSettings(capacities=[measured])
        settings = Settings(data=DataSettings(clients=4), devices=devices, engine="serial", evaluation=evaluation)
        with nullcontext() if "1/4" in capacities else pytest.raises(PlanError, match=message):
            Experiment(settings, model=Projected(), data=from_tensors(x, y, x, y))
