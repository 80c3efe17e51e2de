"""Models of the transformers package as folders that `from_pretrained` opens: the configuration says the narrow sizes.

A narrow model's modules are right, but most sizes stand in its configuration, which only the constructor reads. Which
number of it states which width is asked of the class itself: it is built on the meta device with one number changed,
and the dimensions that change are those that the number states. Shapes do not say how many heads there are, and some
numbers stand in no configuration at all (the frequencies of rotary positions, which slices of heads keep): so what the
configuration makes is compared with the narrow model, answer by answer, before anything is saved.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedwidth.core.narrow import copy_model
from fedwidth.data.trees import mapped
from fedwidth.errors import PlanError
from fedwidth.importing import one_line
from fedwidth.plan.isolation import call, untouched

Shapes = dict[str, tuple[int, ...]]
MAX_PASSES = 8


def is_hugging_face(model: nn.Module) -> bool:
    """Whether the model can save itself as such a folder."""
    return hasattr(model, "save_pretrained") and hasattr(getattr(model, "config", None), "to_dict")


def save_folder(model: nn.Module, folder: Path, example: Any) -> None:
    """Save the model with a configuration of its own width; `example` is what it reads."""
    small = copy.copy(model)
    small.config = checked_config(model, example)
    small.save_pretrained(folder)  # type: ignore[operator]


def checked_config(model: nn.Module, example: Any) -> Any:
    """The configuration with which the model's class builds a model that answers as this one does."""
    config = narrow_config(model)
    heads = [name for name in _numbers(config) if "head" in name]
    for number in range(len(heads) + 1):
        for chosen in itertools.combinations(heads, number):
            for share in (2, 4, 8, 16) if number else (1,):
                tried = copy.deepcopy(config)
                for name in chosen:
                    setattr(tried, name, max(1, getattr(config, name) // share))
                if _same_answers(model, tried, example):
                    return tried
    raise PlanError(
        f"no configuration of {type(model).__name__} makes a model that answers as this one: rotary positions of heads"
        " that were sliced within are one reason (model.heads = 'whole' keeps heads whole); export it as torch or onnx"
    )


def narrow_config(model: nn.Module) -> Any:
    """The configuration with which the model's class builds a model of its shapes."""
    config: Any = copy.deepcopy(model.config)
    wanted, kind = _shapes(model), type(model)
    known = []  # what the narrow modules themselves hold under the same name
    for name in _numbers(config):
        held = {value for module in model.modules() if isinstance(value := vars(module).get(name), int)}
        if len(held) == 1:
            setattr(config, name, held.pop())
            known.append(name)
    built: Shapes = {}
    for _ in range(MAX_PASSES):
        found = _built(kind, config)
        if isinstance(found, str):
            raise PlanError(f"{kind.__name__} cannot be built with the configuration of the narrow model: {found}")
        built = found
        if built == wanted:
            return config
        others = [name for name in _numbers(config) if name not in known]
        if not (_correct(kind, config, built, wanted, others) or _correct(kind, config, built, wanted, known)):
            break
    off = next(name for name in wanted if built.get(name) != wanted[name])
    raise PlanError(
        f"no configuration of {kind.__name__} gives this width: '{off}' is {list(wanted[off])}, and would be"
        f" {list(built.get(off, ()))}; export it as torch or onnx, which need no configuration"
    )


def _correct(kind: type, config: Any, built: Shapes, wanted: Shapes, names: Sequence[str]) -> bool:
    """Of the numbers whose dimensions are all off by one factor set the one that mends most; whether there is one."""
    best: tuple[int, str, int] | None = None
    for name in names:
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
            setattr(changed, name, int(value * ratio))
            mended = _built(kind, changed)
            off = len(wanted) if isinstance(mended, str) else sum(mended.get(key) != wanted[key] for key in wanted)
            if best is None or off < best[0]:
                best = off, name, int(value * ratio)
    if best is not None:
        setattr(config, *best[1:])
    return best is not None


@torch.no_grad()
def _same_answers(model: nn.Module, config: Any, example: Any) -> bool:
    """Whether what the configuration makes answers to the bit as this model, with weights that tell them apart."""
    try:
        built = type(model)(copy.deepcopy(config))
    except Exception:  # sizes that do not divide
        return False
    if _shapes(built) != _shapes(model):
        return False
    generator = torch.Generator().manual_seed(0)
    own = copy_model(model)
    state = {
        name: torch.randn(tensor.shape, generator=generator).to(tensor.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in own.state_dict().items()
    }
    inputs = mapped(_varied, example)
    with untouched(built), untouched(own):
        answers = []
        for each in (own, built):
            each.load_state_dict(state)
            answers.append(call(each.eval(), inputs)[0])
    return torch.equal(*answers)


def _varied(tensor: torch.Tensor) -> torch.Tensor:
    """Inputs that differ from place to place; whole numbers are 0 and 1, which any vocabulary and mask has."""
    places = torch.arange(tensor.numel()).view(tensor.shape)
    return (places % 3 + 1).to(tensor.dtype) / 3 if tensor.is_floating_point() else (places % 3 > 0).to(tensor.dtype)


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
