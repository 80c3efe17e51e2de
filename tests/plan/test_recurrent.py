"""What a recurrent layer gives is what its next step reads: the plan says so, whether or not there was a next step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedwidth
from fedwidth.plan.plan import Plan
from fedwidth.plan.trace import trace

LONG = torch.randn(6, 5, 8, generator=torch.Generator().manual_seed(0))
LAYERS: list[tuple[type[nn.RNNBase], dict[str, Any]]] = [
    *((kind, options) for kind in (nn.RNN, nn.GRU, nn.LSTM) for options in ({}, {"num_layers": 2})),
    *((kind, {"num_layers": 2, "bidirectional": True}) for kind in (nn.RNN, nn.GRU, nn.LSTM)),
    (nn.RNN, {"nonlinearity": "relu", "bias": False}),
    (nn.LSTM, {"num_layers": 2, "bias": False}),
    (nn.LSTM, {"proj_size": 6}),
    (nn.LSTM, {"num_layers": 2, "bidirectional": True, "proj_size": 4}),
]


class Layers(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.rnn = kind(8, 16, batch_first=True, **options)
        given = options.get("proj_size", 16) * (1 + options.get("bidirectional", False))
        self.out = nn.Linear(given, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][:, -1])


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.out(self.rnn(packed)[1][0][-1])


class Cell(nn.Module):
    """A cell in a loop, from zeros that it makes inside or from states that the model gives it."""

    def __init__(self, kind: type[nn.RNNCellBase], *, begins: bool) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16) if begins else None
        self.cell, self.out = kind(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        pair = isinstance(self.cell, nn.LSTMCell)
        state = None if self.first is None else self.first(x[:, 0])
        held: Any = (state, state) if pair and state is not None else state
        for step in x.unbind(1):
            held = self.cell(step, held)
        return self.out(held[0] if pair else held)


def same(one: Plan, other: Plan) -> bool:
    return (one.axes, one.groups, one.couplings, one.attributes) == (
        *(other.axes, other.groups, other.couplings, other.attributes),
    )


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize(("kind", "options"), LAYERS, ids=str)
def test_one_step_shows_as_much_of_a_layer_as_several(kind: type[nn.RNNBase], options: dict[str, Any]) -> None:
    model = Layers(kind, **options)
    plan = trace(model, LONG[:2, :1])
    assert same(plan, trace(model, LONG[:2]))
    plan.check(model, LONG)


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("kind", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_one_call_shows_as_much_of_a_cell_as_several(kind: type[nn.RNNCellBase], begins: bool) -> None:
    model = Cell(kind, begins=begins)
    plan = trace(model, LONG[:2, :1])
    assert same(plan, trace(model, LONG[:2]))
    plan.check(model, LONG)


def test_packed_sequences_of_one_step_show_as_much_as_longer_ones() -> None:
    model, lengths = Packed(), torch.tensor([1, 1, 5, 2, 3, 4])
    plan = trace(model, (LONG[:2], lengths[:2]))
    assert list(plan.groups) == ["rnn"]
    plan.check(model, (LONG, lengths))


class ByHand(nn.Module):
    """A recurrence of one's own, with two weights that read the state."""

    def __init__(self) -> None:
        super().__init__()
        self.width = 16
        self.read, self.gate, self.again, self.out = (
            nn.Linear(*size) for size in ((8, 16), (16, 16), (16, 16), (16, 3))
        )

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), self.width)
        for step in x.unbind(1):
            state = torch.tanh(self.read(step) + self.again(state) * torch.sigmoid(self.gate(state)))
        return self.out(state)


def test_one_step_of_a_recurrence_by_hand_leaves_what_reads_the_state_whole() -> None:
    model = ByHand()
    once, twice = trace(model, LONG[:2, :1]), trace(model, LONG[:2, :2])
    assert list(once.groups) == list(twice.groups) == ["read"]
    frozen = [(tensor, dim) for tensor, dim, reason in once.frozen() if reason == "multiplied with a constant alone"]
    assert frozen == [("gate.weight", 1), ("again.weight", 1)]
    once.check(model, LONG[:, :1])
    twice.check(model, LONG)
    index = fedwidth.method("heterofl").select(once, capacity=0.5)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):  # and no other units, without a word
        fedwidth.narrow(model, once, index)(LONG)


class Begun(nn.Module):
    """A recurrence of one's own over what `read` makes of the sample and of a state that begins as zeros."""

    def __init__(self, read: Callable[[Begun, Tensor, Tensor], Tensor], shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.width, self.read, self.shape = 16, read, shape
        self.new, self.again, self.both = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(24, 16)
        self.twice, self.convolved = nn.Linear(32, 16), nn.Conv1d(24, 16, 3, padding=1)
        self.norm, self.groups, self.batch = nn.LayerNorm(16), nn.GroupNorm(1, 16), nn.BatchNorm1d(16)
        self.crossed, self.out = nn.Bilinear(8, 16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), self.width, *self.shape)
        for step in x.unbind(1):
            state = torch.tanh(self.read(self, step, state))
        return self.out(state if not self.shape else state.mean(2))


def convolved(model: Begun, step: Tensor, state: Tensor) -> Tensor:
    return model.convolved(torch.cat([step[..., None].expand(-1, -1, *model.shape), state], 1))


FORMS: dict[str, Callable[[Begun, Tensor, Tensor], Tensor]] = {
    "beside the sample": lambda m, step, state: m.both(torch.cat([step, state], 1)),
    "beside the sample, by elements": lambda m, step, state: m.both(torch.relu(torch.cat([step, state], 1)) * 0.5),
    "by elements": lambda m, step, state: m.new(step) + m.again((state * 0.9).to(torch.float64).float()),
    "by a number that is a tensor": lambda m, step, state: m.new(step) + m.again(state * step.new_tensor(0.9)),
    "dropped out": lambda m, step, state: m.new(step) + m.again(torch.dropout(state, 0.1, m.training)),
    "layer norm": lambda m, step, state: m.new(step) + m.again(m.norm(state)),
    "group norm": lambda m, step, state: m.new(step) + m.again(m.groups(state)),
    "batch norm": lambda m, step, state: m.new(step) + m.again(m.batch(state)),
    "stacked": lambda m, step, state: m.new(step) + m.again(torch.stack([state, state], 1)).sum(1),
    "side by side": lambda m, step, state: m.new(step) + m.twice(torch.cat([state, state], 1)),
    "views": lambda m, step, state: m.new(step) + m.again(state[:, None].transpose(0, 1).contiguous()[0]),
    "crossed with the sample": lambda m, step, state: m.new(step) + m.crossed(step, state),
    "masked": lambda m, step, state: m.new(step) + m.again(state * (step[:, :1] > 0)),
}


@pytest.mark.parametrize("form", FORMS)
def test_one_step_of_a_recurrence_leaves_whole_what_reads_the_state_in_other_forms(form: str) -> None:
    check_begun(Begun(FORMS[form]))


def test_one_step_of_a_convolutional_recurrence_leaves_whole_what_reads_the_state() -> None:
    check_begun(Begun(convolved, shape=(5,)))


def check_begun(model: Begun) -> None:
    """One step shows one group, as two do, and a narrow model is right or ends at the second step."""
    once, twice = trace(model, LONG[:2, :1]), trace(model, LONG[:2, :2])
    assert len(once.groups) == len(twice.groups) == 1
    once.check(model, LONG[:, :1])
    twice.check(model, LONG)
    index = fedwidth.method("feddropout").select(once, capacity=0.5, round=0)
    with pytest.raises(RuntimeError):
        fedwidth.narrow(model, once, index)(LONG)


class Beside(nn.Module):
    """Attention over a sample, with constants that begin no recurrence."""

    def __init__(self, read: Callable[[Beside, Tensor], Tensor]) -> None:
        super().__init__()
        self.width, self.read = 16, read
        self.first, self.query, self.key, self.value = (nn.Linear(size, 16) for size in (8, 16, 16, 16))
        self.places, self.norm, self.out = nn.Parameter(torch.randn(4, 16)), nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.read(self, self.first(x)).mean(1))

    def attend(self, query: Tensor, x: Tensor) -> Tensor:
        scores = self.query(query) @ self.key(x).transpose(1, 2)
        return torch.softmax(scores + torch.zeros(scores.shape[1:]), -1) @ self.value(x)


BESIDE: dict[str, tuple[Callable[[Beside, Tensor], Tensor], list[str]]] = {
    "queries that begin as zeros": (
        lambda m, x: m.attend(m.norm(torch.zeros(len(x), 4, m.width) + m.places), x),
        ["first", "places", "query", "value"],
    ),
    "a class token of zeros": (
        lambda m, x: m.attend(torch.cat([torch.zeros(len(x), 1, m.width), x], 1), x),
        ["first", "query", "value"],
    ),
    "a mask of ones": (
        lambda m, x: m.norm(m.value(x * torch.ones(x.shape[:2])[..., None])),
        ["first", "value"],
    ),
}


@pytest.mark.parametrize("name", BESIDE)
def test_constants_that_begin_no_recurrence_cost_no_group(name: str) -> None:
    read, groups = BESIDE[name]
    plan = trace(Beside(read), LONG[:2])
    assert sorted(plan.groups) == groups
    assert "multiplied with a constant alone" not in [reason for *_, reason in plan.frozen()]
    plan.check(Beside(read), LONG)
