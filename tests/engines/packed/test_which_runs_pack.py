"""Runs train in the same slots where their models compute the same with equal weights, and nowhere else."""

import copy
from contextlib import closing
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from fedwidth.engines.packed.kept_pools import KeptPools
from fedwidth.engines.packed.limits import why_not_train_together
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from fedwidth.run.lockstep import run_in_lockstep
from small_runs import RECIPE, evaluated, same, small

BASE = ("engine=cuda", "rounds=1", "data.clients=8", "devices.per_round=4", "training.lr=0.05")


class Net(nn.Module):
    """A network whose text does not show what lies between its layers."""

    def __init__(self, act, classes=10):
        super().__init__()
        self.one, self.two, self.act = nn.Linear(64, 8), nn.Linear(8, classes), act

    def forward(self, x):
        return self.two(self.act(self.one(x.flatten(1))))


class Leaky:
    """An object with a number."""

    def __init__(self, slope):
        self.slope = slope

    def __call__(self, x):
        return functional.leaky_relu(x, self.slope)


def bound(slope):
    return Net(partial(functional.leaky_relu, negative_slope=slope))


def enclosed(slope):
    return Net(lambda x: functional.leaky_relu(x, slope))


def written_out(slope):
    return Net((lambda x: functional.leaky_relu(x, 0.1)) if slope < 0.5 else (lambda x: functional.leaky_relu(x, 0.9)))


def in_an_object(slope):
    return Net(Leaky(slope))


def in_a_hook(slope):
    made = Net(torch.relu)
    made.handle = made.one.register_forward_hook(lambda module, given, found: found * slope)
    return made


def in_its_class(slope):
    class Inner(Net):
        def forward(self, x):
            return self.two(functional.leaky_relu(self.one(x.flatten(1)), slope))

    return Inner(torch.relu)


def frozen(slope):
    made = Net(torch.relu)
    made.one.weight.requires_grad_(slope > 0.5)
    return made


UNLIKE = [bound, enclosed, written_out, in_an_object, in_a_hook, in_its_class, frozen]


def net(data_shape, classes, slope):
    """The factory of a recipe."""
    return bound(slope)


@pytest.fixture(scope="module")
def data():
    return Experiment(small()).data


def runs(data, make, *, copies=False):
    """Two runs with models that were given in Python."""
    torch.manual_seed(0)
    first = make()
    models = [first, copy.deepcopy(first) if copies else make()]
    return [Experiment(small(*BASE, f"seed={seed}"), data=data, model=each) for seed, each in enumerate(models)]


def same_as_alone(packed, alone):
    return all(same(one.server.state, other.run().server.state) for one, other in zip(packed, alone, strict=True))


@pytest.mark.parametrize("make", UNLIKE)
def test_models_that_compute_something_else_do_not_train_in_the_slots_of_the_pack_before(data, make):
    with closing(KeptPools()) as pools:
        run_in_lockstep(runs(data, lambda: make(0.1)), pools=pools)
        second = run_in_lockstep(runs(data, lambda: make(0.9)), pools=pools)
    assert same_as_alone(second, runs(data, lambda: make(0.9)))


@pytest.mark.parametrize("engine", ["cuda", "vectorised"])
@pytest.mark.parametrize("make", UNLIKE)
def test_models_that_compute_something_else_are_no_pack(data, make, engine):
    both = [
        Experiment(small(*BASE, f"engine={engine}", f"seed={seed}"), data=data, model=make(slope))
        for seed, slope in enumerate((0.1, 0.9))
    ]
    reason = "train different parameters" if make is frozen else "differ in what they hold beside weights"
    with pytest.raises(OptionError, match=f"cannot train as one batch: .*{reason}"):
        run_in_lockstep(both)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("parametrization", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_parametrised_models_train_together_and_after_a_run(data, parametrization):
    def made(seed):
        torch.manual_seed(seed)
        model = Net(torch.relu)
        parametrization(model.one)
        return Experiment(small(*BASE, f"seed={seed}"), data=data, model=model)

    with closing(KeptPools()) as pools:
        first, following = [made(0), made(1)], [made(2), made(3)]
        run_in_lockstep(first, pools=pools)
        assert why_not_train_together(first[0].trainer, following[0].trainer) is None
        second = run_in_lockstep(following, pools=pools)
    assert same_as_alone(second, [made(2), made(3)])


def test_rows_that_give_a_factory_other_options_do_not_share_slots(tmp_path):
    rows = '[{ label = "low", model.options.slope = 0.01 }, { label = "high", model.options.slope = 0.9 }]'
    recipe = RECIPE.replace('"serial"', '"cuda"').replace('"mlp"', '"test_which_runs_pack:net"')
    recipe = recipe.replace("model.options = { hidden = [8] }\n", "")
    (tmp_path / "table.toml").write_text(f'{recipe}[grid]\ncolumns = [{{ label = "c" }}]\nrows = {rows}\n')
    assert evaluated(tmp_path, packed="seeds") == evaluated(tmp_path, packed=False)


def test_models_of_other_options_are_no_pack_whatever_they_hold(data):
    one, other = (
        Experiment(small(*BASE, f"model.options={{hidden=[{width}]}}"), data=data, model=Net(torch.relu)).trainer
        for width in (8, 9)
    )
    assert why_not_train_together(one, other) == "model.options differs"


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("act", [torch.relu, torch.Tensor.relu])
def test_models_with_a_function_train_together(data, act, copies):
    packed = run_in_lockstep(runs(data, lambda: Net(act), copies=copies))
    assert same_as_alone(packed, runs(data, lambda: Net(act), copies=copies))


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("make", UNLIKE)
def test_models_of_one_factory_and_copies_of_one_model_train_together(data, make, copies):
    packed = run_in_lockstep(runs(data, lambda: make(0.9), copies=copies))
    assert same_as_alone(packed, runs(data, lambda: make(0.9), copies=copies))


TEXT = ["data.name=synthetic_text", "data.options={users=12,words=30,length=5}", "data.partition=natural"]
TEXT += ["data.partition_options={}", "training.mask=none"]
ORDINARY = {
    "mlp": ["model.options={hidden=[8]}"],
    "the quick start's": ["model.name=cnn", "model.options={widths=[8,8]}"],
    "the benchmark's": ["model.name=preresnet18", "model.options={}", "model.width=1/16"],
    "the benchmark's with group norm": ["model.name=preresnet18", "model.options={norm='group'}", "model.width=1/32"],
    "the benchmark's for text": ["model.name=transformer", "model.options={}", "model.width=1/16", *TEXT],
}


@pytest.mark.parametrize("changes", ORDINARY.values(), ids=ORDINARY)
def test_seeds_and_methods_of_a_recipe_train_together(changes):
    first = Experiment(small(*BASE, *changes))
    others = [["seed=2"], ["seed=3", "method.name=heterofl"], ["training.lr=0.1"]]
    for other in others:
        run = Experiment(small(*BASE, *changes, *other), data=first.data)
        assert why_not_train_together(first.trainer, run.trainer) is None
