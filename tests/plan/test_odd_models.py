"""Models that are shared, branching, wrapped, or no models at all."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedwidth.core.index import Index
from fedwidth.core.narrow import narrow
from fedwidth.core.submodel import state_of
from fedwidth.errors import PlanError
from fedwidth.plan.plan import Plan
from fedwidth.plan.trace import trace


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


class Wired(nn.Module):
    def __init__(self, wire: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.wire = wire
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Any:
        return self.wire(self, x)


def half(model: nn.Module, plan: Plan) -> nn.Module:
    units = {n: range(plan.groups[n].size - count, plan.groups[n].size) for n, count in plan.counts(0.5).items()}
    return narrow(model, plan, Index.of_units(plan, units))


def test_a_module_used_twice_in_two_places_stays_one_module() -> None:
    inner = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(inner), nn.ReLU(), inner, nn.Linear(8, 3)).eval()
    inputs = torch.randn(5, 4)
    plan = trace(model, inputs)
    assert {g.name: g.size for g in plan.groups.values()} == {"0": 8, "1.0.0": 16}
    assert plan.tied["3.1.running_mean"] == "1.0.1.running_mean"
    plan.check(model, inputs)
    small = half(model, plan)
    assert small[3] is small[1][0]
    assert small(inputs).shape == (5, 3)
    state = state_of(model)
    assert state["3.0.weight"] is state["1.0.0.weight"]


def branching(model: Wired, x: Tensor) -> Tensor:
    hidden = model.first(x)
    return model.out(model.left(hidden) if x.sum() > 0 else model.right(hidden))


def test_a_branch_that_was_not_taken_is_whole_and_fails_loudly_where_it_is_taken() -> None:
    model = Wired(branching, first=nn.Linear(4, 8), left=nn.Linear(8, 8), right=nn.Linear(8, 8), out=nn.Linear(8, 3))
    plan = trace(model, torch.ones(2, 4))
    unread = {(name, dim) for name, dim, reason in plan.frozen() if reason == "not used in the forward pass"}
    assert unread == {("right.weight", 0), ("right.weight", 1), ("right.bias", 0)}
    small = half(model, plan)
    assert small(torch.ones(2, 4)).shape == (2, 3)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        small(-torch.ones(2, 4))
    with pytest.raises(PlanError, match="fails at half width|breaks the permutation law"):
        plan.check(model, -torch.ones(2, 4))


def repeated(model: Wired, x: Tensor) -> Tensor:
    x = model.first(x)
    for _ in range(int(x.abs().sum()) % 3 + 1):
        x = torch.relu(model.again(x))
    return model.out(x)


def test_a_model_that_looks_at_values_says_so() -> None:
    # Seen once, the loop has two widths, and a second turn would read the units of one as those of the other.
    model = Wired(repeated, first=nn.Linear(4, 8, bias=False), again=nn.Linear(8, 8), out=nn.Linear(8, 3))
    nn.init.ones_(model.first.weight)
    once, twice = (trace(model, torch.full((1, 4), value)) for value in (0.0, 1 / 32))
    assert [list(plan.groups) for plan in (once, twice)] == [["first", "again"], ["first"]]
    for plan in (once, twice):
        assert plan.looks_at_values
        assert str(plan).endswith("the model looks at values: the plan holds for the path the example inputs took")
    assert not trace(mlp(), torch.zeros(2, 4)).looks_at_values


@pytest.mark.parametrize(
    "give",
    [
        lambda y: (y, y * 2),
        lambda y: {"logits": y, "loss": None, "steps": 3},
        lambda y: [y, {"deep": (y,)}],
    ],
)
def test_outputs_may_be_nested(give: Callable[[Tensor], Any]) -> None:
    model = Wired(lambda self, x: give(self.net(x)), net=mlp())
    plan = trace(model, torch.randn(2, 4))
    assert [g.size for g in plan.groups.values()] == [8]
    plan.check(model, torch.randn(2, 4))
    assert type(half(model, plan)(torch.randn(2, 4))) is type(give(torch.zeros(2, 3)))


def in_place(model: Wired, x: Tensor) -> Tensor:
    hidden = model.first(x).relu_().add_(1)
    hidden[:, 1::2] *= 2
    return model.out(hidden)


def test_operators_in_place() -> None:
    model = Wired(in_place, first=nn.Linear(4, 8), out=nn.Linear(8, 3))
    inputs = torch.randn(2, 4)
    before, kept = state_of(model), inputs.clone()
    plan = trace(model, inputs)
    plan.check(model, inputs)
    assert torch.equal(inputs, kept)
    assert all(torch.equal(t, before[n]) for n, t in state_of(model).items())


def test_a_model_of_buffers_only_is_sliced_and_has_no_parameters() -> None:
    class Random(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("up", torch.randn(4, 8))
            self.register_buffer("down", torch.randn(8, 3))

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x @ self.up) @ self.down

    model = Random()
    plan = trace(model, torch.randn(2, 4))
    assert not plan.parameters
    plan.check(model, torch.randn(2, 4))
    assert half(model, plan).down.shape == (4, 3)


def test_complex_parameters() -> None:
    class Phases(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Parameter(torch.randn(4, 8, dtype=torch.complex64))
            self.down = nn.Parameter(torch.randn(8, 3, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            return ((x.to(torch.complex64) @ self.up) @ self.down).abs()

    model, inputs = Phases(), torch.randn(2, 4)
    plan = trace(model, inputs)
    plan.check(model, inputs)
    half(model, plan)(inputs).sum().backward()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (None, "expected a torch.nn.Module, not None"),
        (nn.Linear, "expected a torch.nn.Module, not <class"),
        (len, "expected a torch.nn.Module, not <built-in function len>"),
        (nn.DataParallel(mlp()), "a DataParallel hides its modules; use the model it was made of"),
        (nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 3)), "'0.weight' has no shape yet"),
    ],
)
def test_what_is_no_model_is_refused(model: Any, message: str) -> None:
    plan = trace(mlp(), torch.zeros(2, 4))
    for ask in (
        lambda: trace(model, torch.zeros(2, 4)),
        lambda: narrow(model, plan, Index.whole(plan)),
        lambda: plan.check(model, torch.zeros(2, 4)),
        lambda: state_of(model),
    ):
        with pytest.raises(PlanError, match=message):
            ask()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.* is not supported")
def test_a_scripted_model_is_refused() -> None:
    with pytest.raises(PlanError, match="hides its modules"):
        trace(torch.jit.script(mlp()), torch.zeros(2, 4))


@pytest.mark.parametrize("inputs", [None, "x", (), torch.zeros(2, 5), {"y": torch.zeros(2, 4)}])
def test_inputs_the_model_cannot_take_are_named_and_leave_it_as_it_was(inputs: Any) -> None:
    model = mlp().train()
    before = copy.deepcopy(model.__dict__)
    with pytest.raises(PlanError, match="the model failed on the example inputs: "):
        trace(model, inputs)
    assert model.training
    assert type(model[0].in_features) is int
    assert model.__dict__.keys() == before.keys()


def test_an_output_that_cannot_be_picked_is_named() -> None:
    model = mlp()
    for output in (lambda result: result["logits"], 3):
        with pytest.raises(PlanError, match="output= failed on what the model gave, a Tensor: "):
            trace(model, torch.zeros(2, 4), output=output)
    plan = trace(model, torch.zeros(2, 4))
    with pytest.raises(PlanError, match="output= failed"):
        plan.check(model, torch.zeros(2, 4), output=lambda result: result.logits)


def test_a_model_without_values_can_be_traced_and_narrowed_but_not_checked() -> None:
    model, inputs = mlp().to("meta"), torch.zeros(2, 4, device="meta")
    plan = trace(model, inputs)
    assert half(model, plan)[0].weight.shape == (4, 4)
    with pytest.raises(PlanError, match="holds no values"):
        plan.check(model, inputs)
