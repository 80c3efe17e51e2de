"""The names that users lean on, imported as they import them."""

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import fedwidth

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"


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


def pages():
    return [page for page in sorted(REFERENCE.glob("*.md")) if page.name != "README.md"]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_what_the_reference_lists_is_there(page):
    text = page.read_text(encoding="utf-8")
    listed = re.findall(r"^::: (\S+)\n(?:    options:\n      members: \[(.*)\])?", text, re.MULTILINE)
    assert listed
    for dotted, members in listed:
        found = resolve(dotted)
        for member in filter(None, members.split(", ")):
            assert hasattr(found, member) or member in getattr(found, "__dataclass_fields__", {}), f"{dotted}.{member}"


def resolve(dotted):
    """The object of a dotted name: as deep as there are modules, then attributes."""
    parts = dotted.split(".")
    for depth in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:depth]))
        except ModuleNotFoundError:
            continue
        for name in parts[depth:]:
            found = getattr(found, name)
        return found
    raise AssertionError(dotted)
