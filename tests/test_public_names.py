"""The names that users lean on, imported as they import them (the reference: tests/docs/test_site.py)."""

import copy
import inspect
from dataclasses import replace
from importlib import import_module
from types import ModuleType

import pytest
import torch
from torch import nn

import fedwidth
from fedwidth.errors import OptionError
from fedwidth.moved import MOVED


@pytest.mark.parametrize("name", fedwidth.__all__)
def test_what_the_package_lists_is_there(name):
    assert getattr(fedwidth, name) is not None


def test_a_function_and_the_module_it_stands_in_do_not_hide_each_other():
    import fedwidth.core.narrow

    assert isinstance(fedwidth.core.narrow, ModuleType)
    assert inspect.isfunction(fedwidth.narrow)
    assert fedwidth.core.narrow.narrow is fedwidth.narrow
    assert inspect.isfunction(fedwidth.method)


def test_methods_are_listed_by_the_package_that_holds_them():
    import fedwidth.methods

    assert isinstance(fedwidth.methods, ModuleType)
    assert fedwidth.methods() == fedwidth.methods.methods()
    assert "fedrolex" in fedwidth.methods()


def test_from_a_model_to_a_merged_state():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    plan = fedwidth.trace(model, torch.zeros(2, 4))
    method = fedwidth.method("fedrolex", rounding="ceil", step=1, overlap=None, direction="forward")
    index = method.select(plan, capacity=0.25, round=3, client=0, clients=1, seed=0)
    assert [each.tolist() for each in index["0.weight"]] == [[3, 4], [0, 1, 2, 3]]
    state = fedwidth.state_of(model)
    sub = fedwidth.extract(state, plan, index)
    small = fedwidth.narrow(model, plan, index)
    assert small(torch.ones(2, 4)).shape == (2, 3)
    merged = fedwidth.merge(state, [(sub, index, 1.0)], plan)
    assert all(torch.equal(merged[name], tensor) for name, tensor in state.items())


def test_whole_runs():
    from fedwidth.experiment import Experiment, Result, Stopped
    from fedwidth.settings import Settings

    assert issubclass(Stopped, Exception)
    assert inspect.signature(Experiment.run).return_annotation == Result.__name__
    assert list(inspect.signature(Experiment).parameters)[:1] == ["settings"]
    assert Settings().method.name == "fedrolex"


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_a_module_of_earlier_versions_says_where_it_is_now(old, new):
    assert import_module(new)
    with pytest.raises(ModuleNotFoundError, match=rf"^{old} has moved: it is {new} now$"):
        import_module(old)


def test_so_does_one_that_is_imported_from_its_package():
    with pytest.raises(ImportError, match=r"^fedwidth.index has moved: it is fedwidth.core.index now$"):
        from fedwidth import index  # noqa: F401


def test_a_module_that_never_was_is_not_found_as_usual():
    with pytest.raises(ModuleNotFoundError, match="^No module named 'fedwidth.nothing'$"):
        import_module("fedwidth.nothing")


@pytest.mark.parametrize("name", ["aggregate_with", "local_widths", "remembers"])
def test_fields_of_a_method_of_the_first_version_say_what_they_are_now(name):
    with pytest.raises(OptionError, match=f"Method's {name} is gone since 0.2: it is .* now"):
        fedwidth.Method("mine", "Mine", "-", "-", choose=lambda plan, counts, at: None, **{name: None})


def test_a_method_is_copied_as_before():
    method = fedwidth.method("fedrolex", local="fedprox", mu=0.5)
    assert copy.copy(method) == replace(method) == method
    assert copy.deepcopy(fedwidth.method("fedavg")) == fedwidth.method("fedavg")
