"""Forward passes in half precision (`precision = "bf16"`): what is kept stays in single precision.

Played on a processor for every method: a tensor that a forward pass made is bfloat16, and must not meet one of the
state, the memory or what clients send as it is.
"""

from dataclasses import replace
from itertools import chain

import pytest
import torch
from torch import nn

import fedwidth
from fedwidth.core.answers import ANSWERS
from fedwidth.data import from_tensors
from fedwidth.engines.stacks.trial import try_stack
from fedwidth.experiment import Experiment
from fedwidth.objectives import CLASSIFICATION
from small_runs import same, small

NEEDS = {
    "scaffold": ["training.momentum=0.0", "training.clip=0.0"],
    "fedhm": ["model.options={hidden=[8, 8]}"],
    "prism": ["model.options={hidden=[8, 8]}"],
    "flanc": ["model.options={hidden=[8, 8]}"],
    "fedgkt": ["model.options={hidden=[8, 8]}", "method.options={epochs=2}"],
    "fedtile": ["devices.capacities=b1-c1"],
}
NAMES = [name for name in fedwidth.methods() if not fedwidth.method(name).adapters]
CASES = [(name, False) for name in NAMES]
CASES += [(name, True) for name in NAMES if "published" in fedwidth.method(name).options]


def precisions(loss):
    """The types of what a backward pass goes back through."""
    nodes, found, seen = [loss.grad_fn], set(), set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            found |= {made.dtype for made in node._input_metadata}
            nodes += [before for before, _ in node.next_functions]
    return found


@pytest.fixture
def backward_passes(monkeypatch):
    """Every backward pass; each goes back through half precision, and is not itself in autocast."""
    backward, passes = torch.Tensor.backward, []

    def outside(loss):
        passes.append(loss)
        assert torch.bfloat16 in precisions(loss)
        assert not torch.is_autocast_enabled("cpu"), "a backward pass has the precision of what it goes back through"
        backward(loss)

    monkeypatch.setattr(torch.Tensor, "backward", outside)
    return passes


@pytest.mark.parametrize(("name", "published"), CASES)
def test_what_is_kept_is_in_single_precision(backward_passes, name, published):
    method = fedwidth.method(name)
    changes = [f"method.name={name}", "rounds=2", "precision=bf16", "engine=serial", *NEEDS.get(name, [])]
    changes += ["data.public=0.1"] * method.public + ["method.options.published=true"] * published
    server = Experiment(small(*changes)).run().server
    assert backward_passes
    own = (memory.values() for memory in server.clients.values())
    kept = [*server.state.values(), *server.memory.values(), *chain.from_iterable(own)]
    assert {each.dtype for each in kept if each.is_floating_point()} <= {torch.float32, torch.float64}
    assert all(bool(torch.isfinite(each).all()) for each in kept)


@pytest.mark.parametrize("sent", ["features", "logits"])
def test_what_clients_of_fedgkt_answer_is_computed_in_it_and_sent_in_single_precision(sent):
    run = Experiment(small("method.name=fedgkt", "precision=bf16"))
    (task,) = run.rounds.assign(run.first_server(), [(0, 1.0)])
    trained = run.trainer.train(task.part.cut(run.first_state, run.plan), task, 0)
    answer = trained.update.reports[ANSWERS][sent]
    assert answer.dtype == torch.float32
    assert torch.equal(answer, answer.bfloat16().float())


@pytest.mark.parametrize("name", NAMES)
def test_a_model_in_half_precision_stays_in_it(name):
    """Sums and means are in single precision; the state has the model's own again."""
    torch.manual_seed(0)
    inputs, targets = torch.randn(300, 64).bfloat16(), torch.randint(10, (300,))
    data = from_tensors(inputs, targets, inputs[:50], targets[:50], classes=10)
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 10)).bfloat16()
    method = fedwidth.method(name)
    changes = [f"method.name={name}", "rounds=2", "data.partition=iid", "data.partition_options={}"]
    changes += [each for each in NEEDS.get(name, []) if "hidden" not in each] + ["data.public=0.1"] * method.public
    server = Experiment(small(*changes), model=model, data=data).run().server
    assert {each.dtype for each in server.state.values()} == {torch.bfloat16}


def test_a_step_on_a_processor_is_that_of_autocast():
    """Written out: products of what is rounded to bfloat16, a loss, gradients and weights in single precision."""
    torch.manual_seed(0)
    x, y = torch.randn(64, 64), torch.randint(10, (64,))
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    start = {name: value.clone() for name, value in model.state_dict().items()}
    changes = ["precision=bf16", "rounds=1", "data.clients=1", "data.partition=iid", "data.partition_options={}"]
    changes += ["devices.per_round=1", "devices.capacities=a1", "training.mask=none", "training.weight_decay=0"]
    changes += ["training.momentum=0", "training.clip=0", "training.lr=0.1"]
    found = Experiment(small(*changes), model=model, data=from_tensors(x, y, x, y, classes=10)).run().server.state
    layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    layers.load_state_dict(start)
    weight, bias = layers[0].weight.bfloat16(), layers[0].bias.bfloat16()
    hidden = nn.functional.linear(x.bfloat16(), weight, bias).relu()
    outputs = nn.functional.linear(hidden, layers[2].weight.bfloat16(), layers[2].bias.bfloat16())
    nn.functional.cross_entropy(outputs.float(), y).backward()
    for name, parameter in layers.named_parameters():
        torch.testing.assert_close(found[name], start[name] - 0.1 * parameter.grad, rtol=0, atol=1e-6)
    single = Experiment(small(*changes, "precision=float32"), model=model, data=from_tensors(x, y, x, y, classes=10))
    assert not torch.equal(single.run().server.state["0.weight"], found["0.weight"])


def test_losses_of_ones_own_are_computed_in_single_precision_in_stacks_or_not():
    """A loss of logarithms and exponentials, which autocast leaves in half precision on processors."""
    losses = []

    def loss(output, targets):
        losses.append(output.dtype)
        return nn.functional.nll_loss(output.log_softmax(-1), targets)

    own = replace(CLASSIFICATION, loss=loss)
    changes = ["precision=bf16", "rounds=1", "training.mask=none"]
    found = [Experiment(small(*changes, f"engine={name}"), objective=own).run() for name in ("serial", "vectorised")]
    assert set(losses) == {torch.float32}
    one, stacked = (each.metrics[0]["train_loss"] for each in found)
    assert one == pytest.approx(stacked, rel=1e-5)
    assert one != torch.tensor(one).bfloat16().item(), "not rounded to half precision"


def test_worker_processes_have_the_same_bits_in_half_precision():
    changes = ["precision=bf16", "workers=2", "model.name=cnn", "model.options={widths=[8, 8]}"]
    one, two = (Experiment(small(*changes, f"engine={name}")).run().server.state for name in ("serial", "processes"))
    assert same(one, two)


def normed():
    """Layer norm, and batch norm of the batch at hand."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(16, track_running_stats=False)
    return nn.Sequential(
        nn.Linear(64, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 16), norm, nn.ReLU(), nn.Linear(16, 10)
    )


@pytest.mark.parametrize("model", ["mlp", "cnn", "norms"])
def test_stacked_clients_train_in_half_precision(model):
    """As far from clients one by one as bfloat16 rounds, and further from their own training in single precision than
    the 1e-5 of another order of sums; engines agree in single precision as they do in double."""
    changes = ["model.name=cnn", "model.options={widths=[8, 8]}"] if model == "cnn" else []
    given, states = {}, {}
    if model == "norms":
        x, y = torch.randn(300, 64, generator=torch.Generator().manual_seed(0)), torch.arange(300) % 10
        given = {"data": from_tensors(x, y, x, y, classes=10)}
        changes += ["data.partition=iid", "data.partition_options={}"]
    for engine, precision in (("serial", "bf16"), ("vectorised", "bf16"), ("vectorised", "float32")):
        made = given and {**given, "model": normed()}
        run = Experiment(small("rounds=1", f"engine={engine}", f"precision={precision}", *changes), **made)
        assert try_stack(run.trainer) is None
        states[engine, precision] = run.run().server.state
    serial, stacked, single = states.values()
    moved = apart(serial, run.first_state)
    assert apart(stacked, serial) < 0.03 * moved
    assert apart(stacked, single) > 1e-4 * moved


def apart(one, other):
    """The distance of two states."""
    return sum(float((one[name] - other[name]).square().sum()) for name in one if one[name].is_floating_point()) ** 0.5


@pytest.mark.parametrize(("precision", "expected"), [("bf16", torch.bfloat16), ("tf32", torch.float32)])
def test_the_server_answers_and_measures_in_it(precision, expected):
    """A model's answers to what the server asks, its statistics, and what validation samples say of it; the scores of a
    model and what is taken away of it are in single precision."""
    changes = [f"precision={precision}", "model.name=cnn", "model.options={widths=[8, 8]}", "data.validation=0.1"]
    run = Experiment(small(*changes))
    model, server, seen = run.model, run.first_server(), []
    assert run.rounds.answer(model, run.data.example()).dtype == expected
    model.register_forward_hook(lambda _module, _inputs, output: seen.append(output.dtype))
    run.evaluator.prepare(model, server.state)
    assert set(seen) == {expected}
    seen.clear()
    run.evaluator.validate(model)
    assert set(seen) == {expected}
    seen.clear()
    run.evaluator.prepare(model, server.state, precise=True)
    assert set(seen) == {torch.float32}


class Recurrent(nn.Module):
    """Rows of a picture one after the other, then attention over them."""

    def __init__(self):
        super().__init__()
        self.rows, self.attention = nn.LSTM(8, 16, batch_first=True), nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = self.rows(x)[0]
        return self.head(self.attention(x, x, x)[0].mean(1))


def test_recurrent_layers_and_attention_train_in_half_precision(backward_passes):
    torch.manual_seed(0)
    x, y = torch.randn(300, 8, 8), torch.arange(300) % 10
    changes = ["precision=bf16", "data.partition=iid", "data.partition_options={}"]
    run = Experiment(small(*changes), model=Recurrent(), data=from_tensors(x, y, x, y, classes=10))
    state = run.run().server.state
    assert backward_passes
    assert all(bool(torch.isfinite(each).all()) for each in state.values())
    assert not same(state, run.first_state)
