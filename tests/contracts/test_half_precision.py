"""Forward passes in half precision, as `precision = "bf16"` has them on a GPU: what is kept stays in single precision.

On processors PyTorch knows them too, so they are played here for every method: a tensor that a forward pass made is
bfloat16, and must not meet one of the state, the memory or what clients send as it is.
"""

import sys
from itertools import chain

import pytest
import torch
from torch import nn

import fedwidth
from fedwidth.core.answers import ANSWERS
from fedwidth.data import from_tensors
from fedwidth.experiment import Experiment
from small_runs import small

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


@pytest.fixture
def half_precision(monkeypatch):
    """Every forward pass that may be in half precision is."""
    passes = []

    def autocast(device, precision):
        passes.append(precision)
        return torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False)

    for name, module in list(sys.modules.items()):
        if name.startswith("fedwidth.") and name != "fedwidth.gpu" and hasattr(module, "autocast"):
            monkeypatch.setattr(module, "autocast", autocast)
    backward = torch.Tensor.backward

    def outside(loss):
        assert not torch.is_autocast_enabled("cpu"), "a backward pass has the precision of what it goes back through"
        backward(loss)

    monkeypatch.setattr(torch.Tensor, "backward", outside)
    return passes


@pytest.mark.parametrize(("name", "published"), CASES)
def test_what_is_kept_is_in_single_precision(half_precision, name, published):
    method = fedwidth.method(name)
    changes = [f"method.name={name}", "rounds=2", *NEEDS.get(name, [])]
    changes += ["data.public=0.1"] * method.public + ["method.options.published=true"] * published
    server = Experiment(small(*changes)).run().server
    assert half_precision
    own = (memory.values() for memory in server.clients.values())
    kept = [*server.state.values(), *server.memory.values(), *chain.from_iterable(own)]
    assert {each.dtype for each in kept if each.is_floating_point()} <= {torch.float32, torch.float64}
    assert all(bool(torch.isfinite(each).all()) for each in kept)


@pytest.mark.parametrize("sent", ["features", "logits"])
def test_what_clients_of_fedgkt_answer_is_computed_in_it_and_sent_in_single_precision(half_precision, sent):
    run = Experiment(small("method.name=fedgkt"))
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
