"""Adapters apart from their model, as the files of `peft`, and merged into it.

A folder of `peft` has `adapter_model.safetensors`, whose names begin with "base_model.model." and leave out the name of
the adapter, and `adapter_config.json`. `peft` loads what `save` writes, and `load` reads what it wrote.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedwidth.adapters.adapt import add_adapter
from fedwidth.adapters.layer import NAME
from fedwidth.core.narrow import copy_model
from fedwidth.errors import StateError
from fedwidth.plan.adapters import FREEZE, Adapter, find_adapters

PREFIX = "base_model.model."
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
DOWN, UP = ".lora_A.weight", ".lora_B.weight"


def merge(model: nn.Module) -> nn.Module:
    """A copy of the model without adapters: what they add is in its weights. It computes the same, up to rounding."""
    made = copy_model(model)
    found = _found(made)
    tensors = dict(made.named_parameters())
    with torch.no_grad():
        for adapter in found:
            weight = tensors[adapter.weight]
            change = adapter.product(tensors[adapter.up].double(), tensors[adapter.down].double(), tuple(weight.shape))
            weight.copy_(weight.double() + change)
            made.set_submodule(adapter.module, made.get_submodule(adapter.module).base_layer)  # type: ignore[arg-type]
    inner = made.get_submodule(PREFIX.rstrip(".")) if hasattr(made, "peft_config") else made
    for parameter in inner.parameters():
        parameter.requires_grad_(True)
    return inner


def adapter_state(model: nn.Module) -> dict[str, Tensor]:
    """What is trained of a model with adapters, by the names that `peft` uses in files."""
    return {name: tensor.detach().contiguous() for name, tensor in _tensors(model, _found(model)).items()}


def save(model: nn.Module, folder: str | Path) -> None:
    """Write a model's adapters, and what else it trains, into a folder that `peft` loads."""
    from safetensors.torch import save_file

    found = _found(model)
    tensors = dict(model.named_parameters())
    ranks = {_plain(adapter.module): int(tensors[adapter.down].shape[0]) for adapter in found}
    alphas = {_plain(adapter.module): adapter.scale * ranks[_plain(adapter.module)] for adapter in found}
    rank, alpha = next(iter(ranks.values())), next(iter(alphas.values()))
    config = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": None,
        "r": rank,
        "lora_alpha": _number(alpha),
        "rank_pattern": {name: own for name, own in ranks.items() if own != rank},
        "alpha_pattern": {name: _number(own) for name, own in alphas.items() if own != alpha},
        "target_modules": list(ranks),
        "modules_to_save": _whole_modules(model, found) or None,
        "fan_in_fan_out": found[0].transposed,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    save_file(adapter_state(model), target / WEIGHTS, metadata={"format": "pt"})
    (target / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def load(model: nn.Module, folder: str | Path, *, outside: str = FREEZE) -> nn.Module:
    """A copy of the model with the adapters of a folder that `save` or `peft` wrote.

    The model has none yet, or has adapters of the same shapes, which are overwritten.
    """
    weights, config = _read(Path(folder))
    made = copy_model(model)
    if not find_adapters(made):
        _add(made, weights, config, outside)
    own = _tensors(made, _found(made))
    if odd := sorted(own.keys() ^ weights.keys()):
        raise StateError(f"{folder} and the model do not hold the same tensors: '{odd[0]}' is in one of them alone")
    with torch.no_grad():
        for name, tensor in weights.items():
            if own[name].shape != tensor.shape:
                raise StateError(
                    f"{folder} has another shape for '{name}': {list(tensor.shape)}, in the model"
                    f" {list(own[name].shape)}"
                )
            own[name].copy_(tensor)
    return made


def _add(model: nn.Module, weights: Mapping[str, Tensor], config: Mapping[str, Any], outside: str) -> None:
    """Add adapters to the layers that weights name, and freeze everything but these and what else there is."""
    modules = [name.removeprefix(PREFIX).removesuffix(DOWN) for name in weights if name.endswith(DOWN)]
    others = {name.removeprefix(PREFIX) for name in weights if not name.endswith((DOWN, UP))}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in others)
    for module in modules:
        rank = weights[f"{PREFIX}{module}{DOWN}"].shape[0]
        alpha = _pattern(config.get("alpha_pattern"), module, config.get("lora_alpha", rank))
        scale = alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank
        try:
            add_adapter(model, module, rank, scale=scale, outside=outside, draws=torch.Generator())
        except AttributeError:
            raise StateError(f"the adapters belong to '{module}', which the model does not have") from None


def _pattern(patterns: Mapping[str, Any] | None, module: str, default: float) -> float:
    """The value of the pattern that a module's name ends with, as `peft` looks it up."""
    for name, value in (patterns or {}).items():
        if module == name or module.endswith(f".{name}"):
            return float(value)
    return float(default)


def _read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        weights = load_file(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise StateError(f"'{folder}' holds no adapters of peft ({WEIGHTS}, {CONFIG}): {error}") from None
    if config.get("peft_type") != "LORA" or config.get("use_dora"):
        kind = "DoRA" if config.get("use_dora") else config.get("peft_type")
        raise StateError(f"'{folder}' holds adapters of kind {kind}; plain LoRA is supported")
    return weights, config


def _tensors(model: nn.Module, found: tuple[Adapter, ...]) -> dict[str, Tensor]:
    """What is saved of a model, by the names that `peft` uses in files."""
    parameters = dict(model.named_parameters())
    kind = found[0].down.removesuffix(".weight").rpartition(".")[2] if found else NAME
    whole = set(_whole_modules(model, found))
    names = [name for adapter in found for name in (adapter.down, adapter.up)]
    names += [name for name in parameters if name not in names and _plain(name.rpartition(".")[0]) in whole]
    return {PREFIX + _plain(name).replace(f".{kind}.weight", ".weight"): parameters[name] for name in names}


def _whole_modules(model: nn.Module, found: tuple[Adapter, ...]) -> list[str]:
    """The modules that are trained whole, beside adapters."""
    factors = {name for adapter in found for name in (adapter.down, adapter.up)}
    trained = [n for n, p in model.named_parameters() if p.requires_grad and n not in factors]
    return list(dict.fromkeys(_plain(name.rpartition(".")[0]) for name in trained))


def _plain(name: str) -> str:
    """A name without what `peft` puts before and between."""
    return name.removeprefix(PREFIX).replace(".modules_to_save.default", "")


def _number(value: float) -> int | float:
    return int(value) if value == int(value) else value


def _found(model: nn.Module) -> tuple[Adapter, ...]:
    if not (found := find_adapters(model)):
        raise StateError("the model has no adapters; fedwidth.adapt adds them")
    return found
