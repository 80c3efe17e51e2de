"""Standard layers with sizes of their own, and models on another device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import zoo
from fedwidth.core.index import Index
from fedwidth.core.narrow import narrow
from fedwidth.plan.trace import trace

Forward = Callable[..., Tensor]


class Wired(nn.Module):
    """Layers by name and how they are wired."""

    def __init__(self, wire: Forward, **layers: nn.Module) -> None:
        super().__init__()
        self.wire = wire
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.wire(self, x)


def sequence() -> Tensor:
    return torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0))


def cells(self: Wired, x: Tensor) -> Tensor:
    hidden = state = x.new_zeros(x.shape[0], self.cell.hidden_size)
    for step in range(x.shape[1]):
        hidden, state = self.cell(x[:, step], (hidden, state))
    return self.out(hidden)


def mixed_experts(self: Wired, x: Tensor) -> Tensor:
    x = self.inputs(x)
    gates = self.gates(x).softmax(-1)
    return self.out(gates[..., :1] * self.first(x) + gates[..., 1:] * self.second(x))


def attention(self: Wired, x: Tensor) -> Tensor:
    return self.out(self.attend(self.query(x), self.key(x), self.value(x))[0])


LAYERS: dict[str, tuple[Callable[[], nn.Module], list[int], int]] = {
    # width 16 of the query = 4 heads x 4 of query and key = 4 heads x 4 of value
    "attention with key and value widths": (
        lambda: Wired(
            attention,
            query=nn.Linear(6, 16),
            key=nn.Linear(6, 12),
            value=nn.Linear(6, 10),
            attend=nn.MultiheadAttention(16, 4, kdim=12, vdim=10, batch_first=True),
            out=nn.Linear(16, 3),
        ),
        [4, 4, 10, 12, 16, 16],
        2,
    ),
    "attention with extra key and value": (
        lambda: Wired(
            lambda self, x: self.out(self.attend(self.inputs(x), self.inputs(x), self.inputs(x))[0]),
            inputs=nn.Linear(6, 16),
            attend=nn.MultiheadAttention(16, 4, add_bias_kv=True, add_zero_attn=True, batch_first=True),
            out=nn.Linear(16, 3),
        ),
        [4, 4, 16, 16],
        2,
    ),
    "two widths multiplied into a third": (
        lambda: Wired(
            lambda self, x: self.out(torch.relu(self.both(self.first(x), self.second(x)))),
            first=nn.Linear(6, 8),
            second=nn.Linear(6, 12),
            both=nn.Bilinear(8, 12, 10),
            out=nn.Linear(10, 3),
        ),
        [8, 10, 12],
        0,
    ),
    # three attentions, two feed-forwards, one residual stream
    "encoder and decoder": (
        lambda: Wired(
            lambda self, x: self.out(self.both(self.inputs(x), self.inputs(x)[:, :3])),
            inputs=nn.Linear(6, 16),
            both=nn.Transformer(16, 4, 1, 1, 24, batch_first=True),
            out=nn.Linear(16, 3),
        ),
        [4, 4, 4, 16, 24, 24],
        3,
    ),
    # two layers: state 12 and projection 8 of each
    "projected lstm": (
        lambda: Wired(
            lambda self, x: self.out(self.rnn(x)[0]),
            rnn=nn.LSTM(6, 12, 2, proj_size=8, batch_first=True),
            out=nn.Linear(8, 3),
        ),
        [8, 8, 12, 12],
        2,
    ),
    # the last states of both layers are stacked in one tensor, so the layers share their units
    "last state of an lstm": (
        lambda: Wired(
            lambda self, x: self.out(self.rnn(x)[1][0][-1]),
            rnn=nn.LSTM(6, 12, 2, batch_first=True),
            out=nn.Linear(12, 3),
        ),
        [12],
        0,
    ),
    "plain recurrence": (
        lambda: Wired(lambda self, x: self.out(self.rnn(x)[0]), rnn=nn.RNN(6, 12, 2), out=nn.Linear(12, 3)),
        [12, 12],
        1,
    ),
    "lstm cell": (lambda: Wired(cells, cell=nn.LSTMCell(6, 12), out=nn.Linear(12, 3)), [12], 0),
    "experts": (
        lambda: Wired(
            mixed_experts,
            inputs=nn.Linear(6, 12),
            gates=nn.Linear(12, 2),
            first=nn.Linear(12, 10),
            second=nn.Linear(12, 10),
            out=nn.Linear(10, 3),
        ),
        [10, 12],
        0,
    ),
    "weight norm": (lambda: nn.Sequential(weight_norm(nn.Linear(6, 12)), nn.ReLU(), nn.Linear(12, 3)), [12], 0),
    "spectral norm": (
        lambda: nn.Sequential(spectral_norm(nn.Linear(6, 12)), nn.ReLU(), spectral_norm(nn.Linear(12, 3))),
        [12],
        0,
    ),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("heads", ["within", "whole"])
def test_layers_with_sizes_of_their_own(name: str, heads: str) -> None:
    make, groups, couplings = LAYERS[name]
    torch.manual_seed(0)
    model, inputs = make(), sequence()
    plan = trace(model, inputs, heads=heads)
    if heads == "within":
        assert sorted(group.size for group in plan.groups.values()) == groups
        assert len(plan.couplings) == couplings
    assert not plan.unknown_operators
    plan.check(model, inputs)
    for capacity in (0.3, 0.5, 0.8):
        counts = plan.counts(capacity)
        small = narrow(model, plan, Index.of_units(plan, {name: range(n) for name, n in counts.items()})).train()
        small(inputs).sum().backward()


def test_a_bag_of_words() -> None:
    bag = Wired(lambda self, x: self.out(self.bag(x)), bag=nn.EmbeddingBag(20, 12), out=nn.Linear(12, 3))
    words = torch.tensor([[1, 2], [3, 19]])
    plan = trace(bag, words)
    assert {group.name: group.size for group in plan.groups.values()} == {"bag": 12}
    plan.check(bag, words)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.filterwarnings("ignore:RNN module weights are not part")
@pytest.mark.parametrize("name", ["resnet-bn", "vit", "transformer-encoder", "lstm", "gru"])
def test_a_model_on_cuda_is_traced_where_it_is(name: str) -> None:
    case = zoo.ZOO[name]
    model, inputs = zoo.build(case.full).cuda(), zoo.doubled(case.inputs()).cuda()
    plan = trace(model, inputs)
    assert sorted(group.size for group in plan.groups.values()) == case.groups
    plan.check(model, inputs)
    index = Index.of_units(plan, {group: range(count) for group, count in plan.counts(0.5).items()})
    small = narrow(model, plan, index)
    assert {tensor.device.type for tensor in small.state_dict().values()} == {"cuda"}
    reference = zoo.build(case.half).cuda()
    reference.load_state_dict(small.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(zoo.run(small, inputs), zoo.run(reference, inputs))
