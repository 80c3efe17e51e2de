"""Which models compute the same with equal weights: those that hold the same."""

from __future__ import annotations

import copy
from abc import ABC
from collections import namedtuple
from functools import lru_cache, partial
from threading import Lock
from typing import Any, Generic, TypeVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import zoo
from fedwidth.plan.watching.likeness import holds_alike


def holding(value: Any) -> nn.Module:
    """A layer that holds something."""
    module = nn.Linear(2, 2)
    module.held = value
    return module


class Settings:
    """An object as models have them."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


class Slotted:
    """One without a dictionary."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class Named(dict[str, int]):
    """A dictionary with an attribute."""

    def __init__(self, title: str, **values: int) -> None:
        super().__init__(**values)
        self.title = title


def ends(number: float) -> Settings:
    """An object that holds itself."""
    made = Settings(number=number)
    made.whole = [made]
    return made


def in_globals(**held: Any) -> Any:
    """A function with globals of its own, of which one that it makes names one."""
    exec("def scaled(x):\n    return [x * item for item in map(lambda y: y * k, (1,))]", held)
    return held["scaled"]


def teacher(seed: int) -> list[nn.Module]:
    """A network that is hidden from the one that holds it."""
    torch.manual_seed(seed)
    return [nn.Linear(2, 2)]


HELD = {
    "numbers": (1, 2),
    "kinds of numbers": (1, 1.0),
    "text": ("gelu", "relu"),
    "nothing": (None, 0),
    "lists": ([1, [2]], [1, [3]]),
    "shorter lists": ([1, 2], [1]),
    "dictionaries": ({"a": 1}, {"a": 2}),
    "keys": ({"a": 1}, {"b": 1}),
    "sets": ({1, 2}, {1, 3}),
    "kinds of numbers in sets": ({1}, {True}),
    "global numbers": (in_globals(k=1), in_globals(k=2)),
    "missing globals": (in_globals(k=1), in_globals()),
    "functions": (torch.relu, torch.tanh),
    "methods of tensors": (torch.Tensor.relu, torch.Tensor.tanh),
    "bound arguments": (partial(torch.clamp, min=1), partial(torch.clamp, min=2)),
    "dtypes": (torch.float32, torch.float64),
    "sizes": (torch.Size([1]), torch.Size([2])),
    "arrays": (np.arange(3), np.arange(3) + 1),
    "tensors": (torch.arange(3), torch.arange(3) + 1),
    "dtypes of tensors": (torch.zeros(2), torch.zeros(2).double()),
    "objects": (Settings(a=[1]), Settings(a=[2])),
    "slots": (Slotted(1), Slotted(2)),
    "dictionaries of a kind": (Named("a", x=1), Named("a", x=2)),
    "their attributes": (Named("a", x=1), Named("b", x=1)),
    "objects that hold themselves": (ends(1), ends(2)),
    "hidden networks": (teacher(1), teacher(2)),
    "defaults": (lambda x, k=1: x * k, lambda x, k=2: x * k),
    "methods": (Settings(a=1).__init__, Settings(a=2).__init__),
}


@pytest.mark.parametrize(("one", "other"), HELD.values(), ids=HELD)
def test_what_modules_hold_tells_them_apart(one: Any, other: Any) -> None:
    assert not holds_alike(holding(one), holding(other))
    assert not holds_alike(holding([one]), holding([other]))
    assert holds_alike(holding(one), holding(one))
    assert holds_alike(holding(one), holding(copy.deepcopy(one)))


def test_what_cannot_be_taken_apart_is_alike_where_it_is_one_object() -> None:
    lock, cached = Lock(), [lru_cache(lambda x: x), lru_cache(lambda x: 2 * x)]
    assert holds_alike(holding(lock), holding(lock))
    assert not holds_alike(holding(lock), holding(Lock()))
    assert not holds_alike(holding(cached[0]), holding(cached[1]))


def test_weights_buffers_and_training_mode_do_not_count_but_what_is_held_of_them_does() -> None:
    def made(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        module[1].running_mean.normal_()
        module.not_a_number, module.again = float("nan"), [module[0].weight]
        return module

    one, other = made(1), made(2).eval()
    assert holds_alike(one, other)
    other.again = [other[0].bias]
    assert not holds_alike(one, other)
    other.again = [one[0].weight]
    assert not holds_alike(one, other)


def test_hooks_are_compared_and_not_when_they_were_registered() -> None:
    def hooked(*factors: int) -> nn.Module:
        module = nn.Linear(2, 2)
        for factor in factors:
            module.handle = module.register_forward_hook(partial(_scale, factor))
        return module

    assert holds_alike(hooked(2, 3), hooked(2, 3))
    assert not holds_alike(hooked(2, 3), hooked(3, 2))
    assert not holds_alike(hooked(2), hooked())


def _scale(factor: int, module: nn.Module, given: Any, found: Any) -> Any:
    return found * factor


def test_classes_that_are_made_anew_for_every_model_are_compared() -> None:
    def scaled(factor: int) -> nn.Module:
        class Scaled(nn.Linear):
            @property
            def factor(self) -> int:
                return factor

            @staticmethod
            def name() -> str:
                return "scaled"

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.factor * super().forward(x)

        return Scaled(2, 2)

    assert holds_alike(scaled(2), scaled(2))
    assert not holds_alike(scaled(2), scaled(3))
    for parametrization in (parametrizations.weight_norm, parametrizations.spectral_norm):
        assert holds_alike(parametrization(nn.Linear(2, 2)), parametrization(nn.Linear(2, 2)))


@pytest.mark.parametrize("parametrization", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_parametrised_models_are_alike_after_they_were_copied(parametrization: Any) -> None:
    def made(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(parametrization(nn.Linear(2, 2)), nn.Linear(2, 2))

    one, other = made(1), made(2)
    copied = copy.deepcopy(one)
    assert holds_alike(one, other)
    assert holds_alike(copied, other)
    assert holds_alike(copied, copy.deepcopy(other))


def traced() -> nn.Module:
    return torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))


def named() -> nn.Module:
    return holding(namedtuple("Out", "logits hidden"))


def cached() -> nn.Module:
    return holding(lru_cache(lambda x: 2 * x))


def abstract() -> nn.Module:
    class Inner(nn.Linear, ABC):
        pass

    return Inner(2, 2)


def generic() -> nn.Module:
    kind = TypeVar("kind")

    class Inner(nn.Linear, Generic[kind]):
        pass

    return Inner(2, 2)


def with_globals() -> nn.Module:
    return holding(in_globals(k=2, unused=object()))


@pytest.mark.parametrize("make", [traced, named, cached, abstract, generic, with_globals])
def test_what_is_made_anew_with_every_model_is_compared_by_what_it_does(make: Any) -> None:
    one, other = make(), make()
    assert holds_alike(one, other)
    assert holds_alike(copy.deepcopy(one), copy.deepcopy(other))


@pytest.mark.parametrize("options", [({"dim": 0}, {"dim": 1}), ({"name": "weight"}, {"name": "bias"})])
def test_parametrised_models_differ_in_their_parametrisations(options: tuple[Any, Any]) -> None:
    one, other = (parametrizations.weight_norm(nn.Linear(2, 2), **option) for option in options)
    assert not holds_alike(one, other)


def test_classes_made_anew_are_alike_where_an_object_of_one_was_copied() -> None:
    def made() -> nn.Module:
        class Inner(Settings):
            pass

        return holding(Inner)

    one, other = made(), made()
    copy.deepcopy(one.held(a=1))
    assert "__slotnames__" in vars(one.held)  # kept there by the standard library
    assert holds_alike(one, other)


def test_a_deep_chain_of_objects_is_compared() -> None:
    def chain(last: int) -> Any:
        made: Any = last
        for _ in range(2000):
            made = Settings(next=made)
        return made

    assert holds_alike(holding(chain(1)), holding(chain(1)))
    assert not holds_alike(holding(chain(1)), holding(chain(2)))


@pytest.mark.parametrize("name", zoo.PLANNED)
def test_a_factory_makes_models_that_are_alike(name: str) -> None:
    if name in zoo.HUGGING_FACE:
        pytest.importorskip("transformers")
    case = zoo.PLANNED[name]
    one = zoo.build(case.full)
    assert holds_alike(one, zoo.build(case.full, seed=1))
    assert holds_alike(one, copy.deepcopy(one))
    assert not holds_alike(one, zoo.build(case.half))
