"""Models of the transformers package as folders that `from_pretrained` opens: the configuration says the narrow sizes.

A narrow model's modules are right, but most sizes stand in its configuration, which only the constructor reads. Which
number of it states which width is asked of the class itself: it is built on the meta device with one number changed,
and the dimensions that change are those that the number states.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedwidth.errors import PlanError
from fedwidth.importing import one_line

Shapes = dict[str, tuple[int, ...]]
MAX_PASSES = 8


def is_hugging_face(model: nn.Module) -> bool:
    """Whether the model can save itself as such a folder."""
    return hasattr(model, "save_pretrained") and hasattr(getattr(model, "config", None), "to_dict")


def save_folder(model: nn.Module, folder: Path) -> None:
    """Save the model with a configuration of its own width."""
    small = copy.copy(model)
    small.config = narrow_config(model)  # type: ignore[assignment]
    small.save_pretrained(folder)  # type: ignore[operator]


def narrow_config(model: nn.Module) -> Any:
    """The configuration with which the model's class builds a model of its shapes."""
    config: Any = copy.deepcopy(model.config)
    wanted, kind = _shapes(model), type(model)
    for name in _numbers(config):  # what the narrow modules themselves hold under this name
        held = {value for module in model.modules() if isinstance(value := vars(module).get(name), int)}
        if len(held) == 1:
            setattr(config, name, held.pop())
    for _ in range(MAX_PASSES):
        built = _built(kind, config)
        if isinstance(built, str):
            raise PlanError(f"{kind.__name__} cannot be built with the configuration of the narrow model: {built}")
        if built == wanted:
            return config
        if not _correct(kind, config, built, wanted):
            break
    off = next(name for name in wanted if built.get(name) != wanted[name])
    raise PlanError(
        f"no configuration of {kind.__name__} gives this width: '{off}' is {list(wanted[off])}, and would be"
        f" {list(built.get(off, ()))}; export it as torch or onnx, which need no configuration"
    )


def _correct(kind: type, config: Any, built: Shapes, wanted: Shapes) -> bool:
    """Set the first number all of whose dimensions are off by one factor; whether there is one."""
    for name in list(_numbers(config)):
        value = getattr(config, name)
        changed = copy.deepcopy(config)
        setattr(changed, name, 2 * value)
        other = _built(kind, changed)
        if isinstance(other, str):
            continue
        states = [
            (key, dim)
            for key, shape in built.items()
            for dim, size in enumerate(shape)
            if len(other.get(key, ())) == len(shape) and other[key][dim] != size
        ]
        factors = {(wanted[key][dim], built[key][dim]) for key, dim in states if key in wanted}
        ratios = {narrow / full for narrow, full in factors}
        if len(ratios) == 1 and (ratio := ratios.pop()) != 1 and value * ratio == int(value * ratio):
            setattr(config, name, int(value * ratio))
            return True
    return False


def _numbers(config: Any) -> Iterator[str]:
    for name, value in config.to_dict().items():
        if isinstance(value, int) and not isinstance(value, bool) and value > 1 and hasattr(config, name):
            yield name


def _built(kind: type, config: Any) -> Shapes | str:
    """The shapes of the model that a configuration makes; in words, why it makes none."""
    try:
        with torch.device("meta"):
            return _shapes(kind(copy.deepcopy(config)))
    except Exception as error:  # sizes that do not divide, and whatever else a constructor refuses
        return one_line(error)


def _shapes(model: nn.Module) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
