"""Adapters for the layers of a model: everything else is frozen.

`adapt` adds them, or takes those that `peft` added. Every rank is then a width group of the plan, and a method chooses
its units.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
from torch import nn

from fedwidth.adapters.layer import AdapterLayer
from fedwidth.core.narrow import copy_model
from fedwidth.errors import OptionError, whole_number
from fedwidth.plan.adapters import FREEZE, OUTSIDE, find_adapters
from fedwidth.randomness import torch_generator

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)


def adapt(
    model: nn.Module,
    rank: int = 16,
    targets: Sequence[str] = (),
    *,
    alpha: float | None = None,
    outside: str = FREEZE,
    train: Sequence[str] = (),
    seed: int = 0,
) -> nn.Module:
    """A copy of the model with low-rank adapters, W + (alpha / rank) B A, in which only these are trained.

    `targets` names the layers, by patterns such as "layers.*.query" or by the ends of their names, as `peft` does; left
    out, all linear and convolution layers get an adapter but the last one. `alpha` is the rank where it is left out.
    The scale is that of the global rank for every client, however few units it trains. Units that a client does not
    train stay in its forward pass (`outside="freeze"`), or are left out of it ("drop"). `train` has patterns of other
    parameters to be trained whole, such as "classifier.*".

    A model that has adapters already (`peft` made them) keeps them as they are, and only `outside` and `train` count.

    >>> model = adapt(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), rank=2, targets=["0", "2"])
    >>> [name for name, parameter in model.named_parameters() if parameter.requires_grad][:2]
    ['0.lora_A.default.weight', '0.lora_B.default.weight']
    """
    if outside not in OUTSIDE:
        raise OptionError(f"outside must be 'freeze' or 'drop', not {outside!r}")
    made = copy_model(model)
    if found := find_adapters(made):
        for adapter in found:
            made.get_submodule(adapter.module).outside = outside  # type: ignore[assignment]
    else:
        rank = whole_number("rank", rank, least=1)
        scale = _scale(alpha, rank)
        for parameter in made.parameters():
            parameter.requires_grad_(False)
        for number, name in enumerate(choose_layers(made, targets)):
            draws = torch_generator(seed, "adapter", number)
            add_adapter(made, name, rank, scale=scale, outside=outside, draws=draws)
    _train_too(made, train)
    return made


def add_adapter(model: nn.Module, name: str, rank: int, *, scale: float, outside: str, draws: torch.Generator) -> None:
    """Put a layer with an adapter in the place of one of the model's."""
    layer = model.get_submodule(name)
    if not isinstance(layer, LAYERS):
        raise OptionError(f"'{name}' is a {type(layer).__name__}: linear and convolution layers get adapters")
    model.set_submodule(name, AdapterLayer(layer, rank, scale=scale, outside=outside, draws=draws))


def choose_layers(model: nn.Module, targets: Sequence[str]) -> list[str]:
    """The names of the layers that get an adapter; a target that is none is refused."""
    if isinstance(targets, str):
        raise OptionError(f"targets are a list of names of layers, such as [{targets!r}]")
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LAYERS) and name}
    fit = [name for name, layer in layers.items() if getattr(layer, "groups", 1) == 1]
    if not targets:
        if not fit[:-1]:
            raise OptionError("the model has no linear or convolution layer before its last one: name targets")
        return [name for name in fit if name != list(layers)[-1]]
    chosen = []
    for name in layers:
        wanted = [t for t in targets if fnmatchcase(name, t) or name.endswith(f".{t}")]
        if wanted and name not in fit:
            raise OptionError(f"target '{wanted[0]}' names '{name}', a grouped convolution, which gets no adapter")
        chosen += [name] if wanted else []
    for target in targets:
        if not any(fnmatchcase(name, target) or name.endswith(f".{target}") for name in layers):
            shown = ", ".join(list(layers)[:12]) + (f" and {len(layers) - 12} more" if len(layers) > 12 else "")
            raise OptionError(f"target '{target}' names no linear or convolution layer of the model; it has: {shown}")
    return chosen


def _scale(alpha: float | None, rank: int) -> float:
    if alpha is None:
        return 1.0
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not alpha > 0:
        raise OptionError(f"alpha must be a number above 0, not {alpha!r}")
    return alpha / rank


def _train_too(model: nn.Module, patterns: Sequence[str]) -> None:
    """Train the parameters of these names too."""
    if isinstance(patterns, str):
        raise OptionError(f"train takes a list of patterns of parameters, such as [{patterns!r}]")
    for pattern in patterns:
        found = [p for name, p in model.named_parameters() if fnmatchcase(name, pattern)]
        if not found:
            raise OptionError(f"train names '{pattern}', but the model has no such parameter")
        for parameter in found:
            parameter.requires_grad_(True)
