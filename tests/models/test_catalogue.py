"""Building models by name: seeds, options, the user's own factories."""

import random
import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

from fedwidth import models
from fedwidth.errors import OptionError
from fedwidth.randomness import host_state


@pytest.fixture
def library(monkeypatch):
    module = types.ModuleType("my_models")
    module.net = lambda classes, width=4: nn.Linear(width, classes)
    module.free = lambda **anything: nn.Linear(3, anything["depth"])
    module.text = lambda: "not a model"
    module.broken = lambda: 1 / 0
    module.number = 3
    module.Namespace = types.SimpleNamespace(net=lambda: nn.Identity())
    monkeypatch.setitem(sys.modules, "my_models", module)
    return module


def test_names():
    assert {"mlp", "cnn", "preresnet18", "transformer"} <= set(models.names())


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_the_seed_alone_decides_the_weights(name):
    first = models.build(name, seed=5).state_dict()
    torch.rand(3)  # the global generator has moved on
    again, other = models.build(name, seed=5).state_dict(), models.build(name, seed=6).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


def test_the_seed_also_decides_what_a_factory_draws_elsewhere(library):
    library.drawn = lambda: nn.Linear(*(1 + int(1e6 * draw()) % 97 for draw in (random.random, np.random.rand)))
    shapes = [models.build("my_models:drawn", seed=seed).weight.shape for seed in (5, 5, 6)]
    assert shapes[0] == shapes[1] != shapes[2]


def test_building_leaves_the_callers_randomness_alone():
    before, host = torch.get_rng_state(), host_state()
    models.build("mlp", seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    assert host_state() == host


def test_facts_of_the_data_reach_only_those_who_ask():
    model = models.build("mlp", data_shape=(2, 3), classes=4, vocabulary=99)
    assert model(torch.zeros(5, 2, 3)).shape == (5, 4)
    assert models.build("transformer", data_shape=(20,), classes=7, vocabulary=7).classifier.out_features == 7


@pytest.mark.parametrize("name", models.names())
def test_example_inputs_fit_the_default_model(name):
    inputs = models.example_inputs(name, batch=1)
    assert models.build(name).eval()(*inputs).shape[0] == 1


def test_example_inputs_follow_the_data():
    assert models.example_inputs("cnn", data_shape=(1, 8, 8), batch=3)[0].shape == (3, 1, 8, 8)
    assert models.example_inputs("transformer", length=6)[0].shape == (2, 6)


def test_own_factory(library):
    assert models.build("my_models:net", classes=6, width=5).weight.shape == (6, 5)
    assert models.build("my_models:free", depth=2).weight.shape == (2, 3)
    assert isinstance(models.build("my_models:Namespace.net"), nn.Identity)
    first, again = models.build("my_models:net", classes=6, seed=1), models.build("my_models:net", classes=6, seed=1)
    assert torch.equal(first.weight, again.weight)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("preresnet", {}, "unknown model 'preresnet' (did you mean 'preresnet18'?); allowed: mlp, cnn, "),
        ("mlp", {"hiden": [3]}, "unknown mlp option 'hiden' (did you mean 'hidden'?); allowed: hidden"),
        ("my_models:net", {"widht": 3}, "unknown my_models:net option 'widht' (did you mean 'width'?)"),
        ("no_such_package.zoo:net", {}, "cannot import 'no_such_package.zoo': No module named 'no_such_package'"),
        ("my_models:nett", {}, "model 'my_models:nett': 'my_models' has no 'nett'"),
        ("my_models:", {}, "model 'my_models:' must be package.module:name, with its name in the module"),
        (":net", {}, "cannot import ''"),
        ("my_models:number", {}, "'number' is a int, not a function or class"),
        ("my_models:text", {}, "model 'my_models:text' must give a torch.nn.Module, but gave a str"),
        (
            "my_models:broken",
            {},
            "model 'my_models:broken' could not be built: division by zero (test_catalogue.py, line ",
        ),
        ("my_models:net", {}, "could not be built"),
    ],
)
def test_bad_names_and_options_are_one_clear_line(library, name, options, message):
    with pytest.raises(OptionError) as caught:
        models.build(name, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_example_inputs_of_an_own_model_need_a_shape(library):
    assert models.example_inputs("my_models:net", data_shape=(4,))[0].shape == (2, 4)
    with pytest.raises(OptionError, match="give data_shape"):
        models.example_inputs("my_models:net")
