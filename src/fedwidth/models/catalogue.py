"""From a name to a model: the built-in ones and `package.module:factory` of the user."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedwidth.errors import FedwidthError, OptionError, unknown
from fedwidth.importing import import_function, one_line, where_failed
from fedwidth.models.cnn import Cnn
from fedwidth.models.lenet import LeNet
from fedwidth.models.mlp import Mlp
from fedwidth.models.preresnet import PreResNet18
from fedwidth.models.transformer import Transformer
from fedwidth.randomness import seeded

Factory = Callable[..., Any]
FACTORIES: dict[str, Factory] = {
    "mlp": Mlp,
    "cnn": Cnn,
    "lenet": LeNet,
    "preresnet18": PreResNet18,
    "transformer": Transformer,
}


def names() -> tuple[str, ...]:
    """Names of the built-in models."""
    return tuple(FACTORIES)


def build(
    name: str,
    *,
    seed: int = 0,
    data_shape: Sequence[int] | None = None,
    classes: int | None = None,
    vocabulary: int | None = None,
    **options: Any,
) -> nn.Module:
    """The model of that name, initialised from `seed` alone.

    `data_shape`, `classes` and `vocabulary` are facts of the data: they reach the factories that ask for them. Every
    other option must be one of the factory's arguments.

    >>> build("mlp", data_shape=(8, 8), hidden=[16]).classifier
    Linear(in_features=16, out_features=10, bias=True)
    >>> build("mlp", hiden=[16])
    Traceback (most recent call last):
    fedwidth.errors.OptionError: unknown mlp option 'hiden' (did you mean 'hidden'?); allowed: hidden
    """
    factory = find(name)
    facts = {"data_shape": data_shape, "classes": classes, "vocabulary": vocabulary}
    arguments = choose_arguments(name, factory, facts, options)
    with seeded(seed):
        try:
            model = factory(**arguments)
        except FedwidthError:
            raise
        except Exception as error:
            raise OptionError(f"model '{name}' could not be built: {one_line(error)}{where_failed(error)}") from error
    if not isinstance(model, nn.Module):
        raise OptionError(f"model '{name}' must give a torch.nn.Module, but gave a {type(model).__name__}")
    return model


def example_inputs(
    name: str, *, data_shape: Sequence[int] | None = None, length: int = 20, batch: int = 2
) -> tuple[Tensor, ...]:
    """Inputs of the right shape for tracing the model: zeros, or token 0 for a built-in model that takes a vocabulary.

    >>> example_inputs("preresnet18")[0].shape
    torch.Size([2, 3, 32, 32])
    """
    if name in FACTORIES and "vocabulary" in accepted(FACTORIES[name]):
        return (torch.zeros(batch, length, dtype=torch.long),)
    if data_shape is None:
        if needs_shape(name):
            raise OptionError(f"the shape of the data of model '{name}' is not known; give data_shape")
        data_shape = accepted(find(name))["data_shape"].default
    return (torch.zeros(batch, *data_shape),)


def needs_shape(name: str) -> bool:
    """Whether what the model reads is only known from the data, and no shape is its default."""
    if name in FACTORIES and "vocabulary" in accepted(FACTORIES[name]):
        return False
    default = accepted(find(name)).get("data_shape")
    return default is None or default.default is inspect.Parameter.empty


def find(name: str) -> Factory:
    """The factory behind a name, imported if it is the user's."""
    if name in FACTORIES:
        return FACTORIES[name]
    if ":" not in name:
        raise unknown("model", name, [*FACTORIES, "package.module:factory"])
    factory: Factory = import_function("model", name)
    return factory


def choose_arguments(
    name: str, factory: Factory, facts: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments to call a factory with: all options, which it must know, and the facts that it asks for."""
    parameters = accepted(factory)
    anything = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    allowed = [key for key in parameters if key not in facts]
    for option in options:
        if option not in allowed and not anything:
            raise unknown(f"{name} option", option, allowed)
    asked = {key: value for key, value in facts.items() if key in parameters and value is not None}
    return {**asked, **options}


def lacking(name: str, given: Collection[str]) -> list[str]:
    """The keyword arguments that the model's factory cannot do without and that are not given."""
    return [
        key
        for key, parameter in accepted(find(name)).items()
        if key not in given
        and parameter.default is inspect.Parameter.empty
        and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]


def accepted(factory: Factory) -> dict[str, inspect.Parameter]:
    """The keyword arguments of a factory."""
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some C functions have no signature
        return {}
    return {key: parameter for key, parameter in parameters.items() if parameter.kind not in by_position}
