"""FedMosaic: a wide model that starts as the sum of narrow ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fedwidth
from fedwidth.core.submodel import state_of
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from fedwidth.methods import Beginning, method
from fedwidth.methods.fedmosaic import block_width
from fedwidth.models import build, example_inputs
from small_runs import small


def started(model, example, enrolled, **options):
    """The model with FedMosaic's first state, and its plan."""
    plan = fedwidth.trace(model, example)
    chosen = method("fedmosaic", **options)
    state = chosen.first_state(Beginning(state_of(model), plan, enrolled, 0, chosen.values))
    model.load_state_dict(state, strict=False)
    return model, plan, state


def parts_of(model, plan, blocks):
    """The narrow network of each block."""
    for number in range(blocks):
        units = {
            name: torch.arange(group.size // blocks) + number * (group.size // blocks)
            for name, group in plan.groups.items()
        }
        yield fedwidth.narrow(model, plan, fedwidth.Index.of_units(plan, units)).eval()


@pytest.mark.parametrize("blocks", [2, 4])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mlp", {"hidden": [16, 8]}),
        ("mlp", {"hidden": [8]}),
    ],
)
def test_its_output_is_the_sum_of_the_narrow_networks(name, options, blocks):
    # The output's bias is in every part, and in the whole once.
    (example,) = example_inputs(name)
    model, plan, _ = started(build(name, **options).double(), example.double(), (1 / blocks,))
    x = torch.randn(5, *example.shape[1:], dtype=torch.float64)
    with torch.no_grad():
        whole = model.eval()(x)
        outputs = [part(x) for part in parts_of(model, plan, blocks)]
    bias = next(t for n, t in reversed(list(model.named_parameters())) if n.endswith("bias"))
    torch.testing.assert_close(whole, sum(outputs) - (blocks - 1) * bias, rtol=0, atol=1e-12)


def test_it_stays_the_sum_while_nobody_trains_between_blocks():
    settings = small(
        "method.name=fedmosaic",
        "devices.capacities=c1",
        "rounds=6",
        "model.options={hidden=[8, 8]}",
        "training.scaler=false",
    )
    run = Experiment(settings)
    result = run.run()
    state = result.server.state
    matrix = max((t for t in state.values() if t.shape == (8, 8)), key=lambda t: t.numel())
    blocks = torch.arange(8) // 2
    between = blocks[:, None] != blocks
    assert not matrix[between].any(), "clients of one width never hold two blocks"
    assert matrix[~between].all()
    moved = [not torch.equal(state[n], t) for n, t in run.first_state.items()]
    assert any(moved)
    x = torch.randn(7, *run.data.shape)
    model = result.model.eval()
    with torch.no_grad():
        outputs = [part(x) for part in parts_of(model, run.plan, 4)]
        bias = [t for n, t in model.named_parameters() if n.endswith("bias")][-1]
        torch.testing.assert_close(model(x), sum(outputs) - 3 * bias, rtol=1e-4, atol=1e-4)


def test_a_client_of_several_blocks_grows_the_weights_between_them():
    run = Experiment(
        small("method.name=fedmosaic", "devices.capacities=b1-c1", "rounds=6", "model.options={hidden=[8, 8]}")
    )
    matrix = max((t for t in run.run().server.state.values() if t.shape == (8, 8)), key=lambda t: t.numel())
    blocks = torch.arange(8) // 2
    between, pair = blocks[:, None] != blocks, (blocks[:, None] // 2) == (blocks // 2)
    assert matrix[between & pair].any(), "a client of 1/2 holds two neighbouring blocks of 1/4"
    assert not matrix[~pair].any(), "and never two that lie apart"


def test_clients_of_a_round_are_dealt_different_blocks():
    plan = fedwidth.trace(build("mlp", hidden=[8]), example_inputs("mlp"))
    tasks = method("fedmosaic").assign(plan, [(c, 0.25) for c in range(4)], round=1)
    (group,) = plan.groups
    assert [task.index.units[group].tolist() for task in tasks] == [[2, 3], [4, 5], [6, 7], [0, 1]]


@pytest.mark.parametrize(
    ("enrolled", "options", "expected"),
    [
        ((1.0, 0.5, 0.25, 0.125, 0.0625), {}, 0.25),
        ((0.5, 0.125), {}, 0.5),
        ((0.125, 0.0625), {}, 0.125),
        ((1.0,), {}, 1.0),
        ((1.0, 0.5), {"block": "1/8"}, 0.125),
    ],
)
def test_which_block_is_the_default(enrolled, options, expected):
    chosen = method("fedmosaic", **options)
    assert block_width(Beginning({}, None, enrolled, 0, chosen.values)) == expected


def test_where_all_have_full_width_nothing_is_zeroed():
    model, _, state = started(build("mlp", hidden=[8]), example_inputs("mlp"), (1.0,))
    for name, tensor in model.state_dict().items():
        assert torch.equal(state[name], tensor)
        assert tensor.all() or name.endswith("bias")


@pytest.mark.parametrize("name", ["preresnet18", "transformer"])
def test_models_with_shortcuts_and_attention_start_as_a_mosaic_too(name):
    options = {"widths": [8, 16, 16, 32]} if name == "preresnet18" else {}
    model, plan, state = started(build(name, **options), example_inputs(name), (0.5,))
    assert isinstance(model, nn.Module)
    matrices = {n: t for n, t in state.items() if t.dim() >= 2 and n in plan.parameters}
    zeroed = [n for n, t in matrices.items() if float((t == 0).double().mean()) == 0.5]
    assert len(zeroed) > 4
    with torch.no_grad():
        assert torch.isfinite(model.eval()(*example_inputs(name))).all()


def test_blocks_that_do_not_divide_are_refused():
    with pytest.raises(OptionError, match="fedmosaic cuts layers into equal blocks, but at width 0.4"):
        Experiment(small("method.name=fedmosaic", "method.options.block=0.4"))
