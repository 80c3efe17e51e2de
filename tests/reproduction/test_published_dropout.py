"""Federated Dropout with a permutation for every layer, as published code draws it."""

import pytest
import torch
from reproduction.published_dropout import METHOD

from fedwidth.core.aggregation import merge
from fedwidth.core.index import Index
from fedwidth.core.narrow import narrow
from fedwidth.core.submodel import extract, state_of
from fedwidth.experiment import Experiment
from fedwidth.models import Cnn, PreResNet18
from fedwidth.plan import trace
from fedwidth.plan.axis import groups_of
from small_runs import small

NAME = "reproduction.published_dropout:METHOD"


def made(kind):
    torch.manual_seed(1)
    model = kind(data_shape=(3, 16, 16), widths=(8, 12, 16, 20)).eval()
    return model, trace(model, torch.zeros(2, 3, 16, 16))


def logits(model, plan, index, inputs):
    sub = narrow(model, plan, index).eval()
    sub.load_state_dict(extract(state_of(model), plan, index))
    return sub(inputs)


def select(plan, capacity, client=0):
    return METHOD.with_options().select(plan, capacity=capacity, round=3, client=client, clients=10, seed=1)


def test_without_shortcuts_the_order_of_units_changes_nothing():
    model, plan = made(Cnn)
    inputs = torch.randn(4, 3, 16, 16)
    torch.testing.assert_close(logits(model, plan, select(plan, 1.0), inputs), model(inputs))
    drawn = select(plan, 0.5)
    same = Index.of_units(plan, {group: _units(plan, drawn, group) for group in plan.groups})
    torch.testing.assert_close(logits(model, plan, drawn, inputs), logits(model, plan, same, inputs))


def _units(plan, index, group):
    """The units of a group that the layer which writes them keeps."""
    (name,) = (n for n, axes in plan.axes.items() if len(axes) > 1 and group in groups_of(axes[0]))
    return index[name][0]


def test_identity_shortcuts_are_scrambled_even_at_full_width():
    model, plan = made(PreResNet18)
    inputs = torch.randn(4, 3, 16, 16)
    assert (logits(model, plan, select(plan, 1.0), inputs) - model(inputs)).abs().max() > 0.01


def test_a_block_that_ends_in_a_projection_is_aligned_and_reads_what_was_written_last():
    _, plan = made(PreResNet18)
    kept = select(plan, 0.5)
    assert torch.equal(kept["blocks.2.shortcut.weight"][0], kept["blocks.2.conv2.weight"][0])
    assert torch.equal(kept["blocks.2.shortcut.weight"][1], kept["blocks.1.conv2.weight"][0])
    assert torch.equal(kept["blocks.1.norm1.0.running_var"][0], kept["blocks.0.conv2.weight"][0])
    assert not torch.equal(kept["blocks.0.conv2.weight"][0], kept["stem.weight"][0])
    assert not torch.equal(select(plan, 0.5, client=1)["stem.weight"][0], kept["stem.weight"][0])


@pytest.mark.parametrize("capacity", [1.0, 0.5])
def test_what_is_cut_can_be_put_back(capacity):
    model, plan = made(PreResNet18)
    state, index = state_of(model), select(plan, capacity)
    sub = {name: tensor + 1 for name, tensor in extract(state, plan, index).items()}
    merged = merge(state, [(sub, index, 1.0)], plan)
    for name, tensor in extract(merged, plan, index).items():
        assert torch.equal(tensor, sub[name])
    if capacity == 1:
        assert all(torch.equal(merged[name], state[name] + 1) for name in plan.parameters)


class Precise(PreResNet18):
    """Trained in double precision: in single precision round-off decides a ReLU now and then, and engines differ."""

    def __init__(self, data_shape, classes):
        super().__init__(data_shape=data_shape, classes=classes, widths=(8, 8, 16, 16))
        self.double()

    def forward(self, inputs):
        return super().forward(inputs.double())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_slots_average_as_one_after_the_other(seed):
    changes = [f"method.name={NAME}", "model.name=test_published_dropout:Precise", "model.options={}", f"seed={seed}"]
    one, other = (Experiment(small(*changes, "rounds=1", f"engine={engine}")).run() for engine in ("serial", "cuda"))
    for name, tensor in one.server.state.items():
        torch.testing.assert_close(other.server.state[name], tensor, rtol=1e-12, atol=1e-13)
