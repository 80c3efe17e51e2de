"""What `trace` promises apart from the groups: the model stays as it was, and bad input is an error that says why."""

from __future__ import annotations

import random
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

import zoo
from fedwidth.core.index import Index
from fedwidth.core.narrow import narrow
from fedwidth.errors import OptionError, PlanError
from fedwidth.plan.rules.registry import RULES, rule
from fedwidth.plan.trace import trace
from fedwidth.plan.watching.recording import Recording


@torch.library.custom_op("fedwidth_tests::halve", mutates_args=())
def halve(x: Tensor) -> Tensor:
    return x / 2


class Custom(nn.Module):
    """Two hidden layers; the first goes through an operator nobody has a rule for."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 6), nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.second(halve(halve(self.first(x))))))


def test_an_unknown_operator_freezes_what_it_touches_and_is_reported() -> None:
    model, inputs = Custom(), torch.randn(2, 4)
    plan = trace(model, inputs)
    assert {g.name: g.size for g in plan.groups.values()} == {"second": 8}
    assert plan.unknown_operators == {"fedwidth_tests.halve": 1}  # the second finds nothing left to freeze
    frozen = {(tensor, dim): reason for tensor, dim, reason in plan.frozen()}
    for member in (("first.weight", 0), ("first.bias", 0), ("second.weight", 1)):
        assert frozen[member] == "operator fedwidth_tests.halve has no rule"
    plan.check(model, inputs)


def test_an_operator_of_another_library_can_have_a_rule() -> None:
    @torch.library.custom_op("fedwidth_tests::third", mutates_args=())
    def third(x: Tensor) -> Tensor:
        return x / 3

    @rule("fedwidth_tests::third")
    def follow(recording: Recording, operator: object, out: Tensor, source: Tensor) -> None:
        recording.put(out, recording.axes(source))

    class Known(Custom):
        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.relu(self.second(third(self.first(x)))))

    try:
        plan = trace(Known(), torch.randn(2, 4))
    finally:
        RULES.pop("fedwidth_tests::third")
    assert list(plan.groups) == ["first", "second"]
    assert not plan.unknown_operators


def test_a_model_whose_outputs_hold_everything_is_told_of_output() -> None:
    class Two(Custom):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            hidden = self.first(x)
            more = self.second(hidden)
            return self.last(more), hidden, more

    with pytest.raises(PlanError, match="nothing to slice: .*it returns several tensors, .* output= says which"):
        trace(Two(), torch.randn(2, 4))
    assert list(trace(Two(), torch.randn(2, 4), output=lambda result: result[0]).groups) == ["first", "second"]


def test_an_unknown_operator_of_torch_is_reported_too() -> None:
    class Spectral(Custom):
        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.relu(self.second(torch.linalg.pinv(self.first(x)).mT)))

    plan = trace(Spectral(), torch.randn(2, 4))
    assert list(plan.groups) == ["second"]
    assert any("linalg" in name for name in plan.unknown_operators)


@pytest.mark.parametrize(
    ("model", "reason"),
    [(nn.Linear(4, 3), "model input"), (nn.ReLU(), "no parameters"), (nn.Conv2d(4, 3, 3), "kernel size")],
)
def test_nothing_to_slice_is_an_error_that_says_why(model: nn.Module, reason: str) -> None:
    with pytest.raises(PlanError, match=f"nothing to slice: .*{reason}"):
        trace(model, torch.randn(2, 4, 4, 4))


def test_a_model_that_fails_is_an_error_with_the_cause() -> None:
    with pytest.raises(PlanError, match="failed on the example inputs: ") as caught:
        trace(nn.Linear(4, 3), torch.randn(2, 5))
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(PlanError, match="no shape yet"):
        trace(nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 3)), torch.randn(2, 5))
    with pytest.raises(OptionError, match="'within' or 'whole'"):
        trace(nn.Linear(4, 3), torch.randn(2, 4), heads="half")


def test_inputs_without_a_sample_are_an_error() -> None:
    with pytest.raises(PlanError, match="the example inputs hold no sample: give at least one"):
        trace(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), torch.zeros(0, 4))


def test_an_output_without_tensors_is_an_error() -> None:
    class Silent(nn.Linear):
        def forward(self, x: Tensor) -> str:  # type: ignore[override]
            return str(super().forward(x).shape)

    with pytest.raises(PlanError, match="holds no tensor"):
        trace(Silent(3, 4), torch.randn(1, 3))


class Restless(nn.Module):
    """Writes to everything it can while it runs."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.fails = fails
        self.hidden = 6
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.history: list[int] = []
        self.cache: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2)
        x = self.drop(torch.relu(self.norm(self.first(x))))
        x = x + torch.rand(1, dtype=x.dtype) * random.random()
        self.calls += 1
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        self.mean = self.mean + 1
        self.history.append(len(x))
        self.cache["last"] = x
        self.width = self.hidden * 2
        with torch.no_grad():
            self.last.bias.add_(1)
        if self.fails:
            raise RuntimeError("boom")
        return self.last(x.view(-1, self.hidden))


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_and_the_random_numbers_are_left_alone(fails: bool) -> None:
    model, inputs = Restless(fails), torch.randn(5, 4)
    model.norm.eval()
    before = deepcopy(vars(model)), {n: t.clone() for n, t in model.state_dict().items()}
    flags = [module.training for module in model.modules()]
    states = torch.get_rng_state(), random.getstate()
    given = inputs.clone()
    identities = {name: id(tensor) for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
    if fails:
        with pytest.raises(PlanError, match="boom"):
            trace(model, inputs)
    else:
        plan = trace(model, inputs)
        assert {g.name: g.size for g in plan.groups.values()} == {"first": 6}
        plan.check(model, inputs)
    assert vars(model).keys() == before[0].keys()
    assert (model.history, model.cache, model.hidden, type(model.hidden)) == ([], {}, 6, int)
    assert all(torch.equal(tensor, before[1][name]) for name, tensor in model.state_dict().items())
    assert {name: id(t) for name, t in [*model.named_parameters(), *model.named_buffers()]} == identities
    assert [module.training for module in model.modules()] == flags
    assert torch.equal(inputs, given)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert torch.backends.mha.get_fastpath_enabled()
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


class Switched(nn.Module):
    """Takes tensors and other things."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, scale: float = 1.0, *, double: bool = False, mask: Tensor | None = None) -> dict:
        x = torch.relu(self.first(x)) * scale
        x = x if mask is None else x * mask[:, None]
        return {"logits": self.last(x) * (2 if double else 1), "nothing": None}


@pytest.mark.parametrize(
    "inputs",
    [
        torch.randn(2, 4),
        (torch.randn(2, 4), 0.5),
        {"x": torch.randn(2, 4), "double": True, "mask": torch.ones(2), "scale": 3},
    ],
)
def test_inputs_may_be_a_tensor_a_tuple_or_a_dict_with_other_things_in_it(inputs: object) -> None:
    plan = trace(Switched(), inputs)
    assert {g.name: g.size for g in plan.groups.values()} == {"first": 6}
    assert plan.label_axes == (("last.weight", 0), ("last.bias", 0))
    plan.check(Switched(), inputs)


def test_hidden_states_in_the_output_freeze_the_stream_unless_the_caller_says_what_counts() -> None:
    class Verbose(Switched):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            hidden = torch.relu(self.first(x))
            return self.last(hidden), hidden

    model, inputs = Verbose(), torch.randn(2, 4)
    with pytest.raises(PlanError, match="model output"):
        trace(model, inputs)
    plan = trace(model, inputs, output=lambda result: result[0])
    assert list(plan.groups) == ["first"]
    plan.check(model, inputs, output=lambda result: result[0])


def test_weights_that_are_not_numbers_do_not_matter() -> None:
    case = zoo.ZOO["resnet-bn"]
    model, inputs = zoo.build(case.full), zoo.doubled(case.inputs())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    plan = trace(model, inputs)
    assert sorted(g.size for g in plan.groups.values()) == case.groups
    plan.check(model, inputs)


def test_the_same_model_gives_the_same_plan() -> None:
    case = zoo.ZOO["transformer-encoder"]
    first, second = (trace(zoo.build(case.full).train(), case.inputs()) for _ in range(2))
    assert first.axes == second.axes
    assert first.groups == second.groups
    assert first.attributes == second.attributes


def test_a_second_batch_size_gives_the_same_plan() -> None:
    for name in ("cnn-nhwc", "vit", "mixture"):
        model, inputs = zoo.build(zoo.ZOO[name].full), zoo.doubled(zoo.ZOO[name].inputs())
        once, twice = trace(model, inputs), trace(model, torch.cat([inputs, inputs, inputs[:1]]))
        assert once.axes == twice.axes


def test_a_batch_of_one_is_enough() -> None:
    for name in ("mlp", "resnet-bn", "vit", "lstm", "transformer-encoder"):
        case = zoo.ZOO[name]
        plan = trace(zoo.build(case.full), zoo.doubled(case.inputs())[:1])
        assert sorted(g.size for g in plan.groups.values()) == case.groups


class Shared(nn.Module):
    """One module used twice, one parameter under two names, one attribute for two widths."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.width = width
        self.inputs, self.other = nn.Linear(5, width), nn.Linear(5, width)
        self.block = nn.Linear(width, width)
        self.again = self.block
        self.left, self.right = nn.Linear(width, 3), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inputs(x).view(-1, self.width)
        y = self.again(torch.relu(self.block(y)))
        z = self.other(x).view(-1, self.width)
        return self.left(y) + self.right(z)


def test_one_attribute_for_two_widths_couples_them() -> None:
    model, inputs = Shared().double(), torch.randn(2, 5).double()
    plan = trace(model, inputs)
    # the block is applied twice, so its input and output are one width
    assert {g.name: g.size for g in plan.groups.values()} == {"inputs": 8, "other": 8}
    assert [(c.whole, c.factor, c.part) for c in plan.couplings] == [("inputs", 1, "other")]
    assert plan.tied == {"again.weight": "block.weight", "again.bias": "block.bias"}
    small = narrow(model, plan, Index.of_units(plan, {"inputs": [0, 3, 4], "other": [1, 2, 7]}))
    assert small.width == 3
    assert small.again is small.block
    assert small(inputs).shape == (2, 3)
    with pytest.raises(PlanError, match="1 times as many"):
        narrow(model, plan, Index.of_units(plan, {"inputs": [0]}))


class Contradiction(nn.Module):
    """One attribute is a width in one place and half of another in the next."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 4
        self.first, self.second, self.third = nn.Linear(5, 4), nn.Linear(5, 6), nn.Linear(5, 7)
        self.last = nn.Linear(17, 3)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.first(x).view(-1, self.size), self.second(x).view(-1, self.size + 2)
        return self.last(torch.cat([a, b, self.third(x)], 1))


def test_a_contradiction_ends_in_frozen_axes_never_in_a_wrong_model() -> None:
    model, inputs = Contradiction(), torch.randn(2, 5)
    plan = trace(model, inputs)
    assert {g.name: g.size for g in plan.groups.values()} == {"third": 7}
    reasons = {name: reason for name, dim, reason in plan.frozen() if dim == 0 and name.endswith("weight")}
    assert "'size' must fit several axes" in reasons["second.weight"]
    plan.check(model, inputs)


def test_buffers_outside_the_state_may_be_missing_from_it() -> None:
    class Masked(Switched):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("gain", torch.ones(6), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(x) * self.gain)

    model = Masked()
    plan = trace(model, torch.randn(2, 4))
    assert plan.optional == {"gain"}
    assert ("gain", 0) in plan.groups["first"].members
    plan.check_state(model.state_dict())


def test_what_a_slice_leaves_over_is_not_a_group() -> None:
    class Positions(Switched):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(10, 6))

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.relu(self.first(x)) + self.table[: x.shape[1]])

    plan = trace(Positions(), torch.randn(2, 3, 4))
    assert {g.name: g.size for g in plan.groups.values()} == {"first": 6}
