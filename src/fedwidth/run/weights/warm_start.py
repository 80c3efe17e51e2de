"""A warm start: the first state of a run is read from a file of weights or from the folder of an earlier run."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fedwidth.config.build import plan_model
from fedwidth.core.updates import not_finite
from fedwidth.data import Data
from fedwidth.errors import StateError
from fedwidth.objectives import Objective
from fedwidth.plan import Plan
from fedwidth.plan.trace import tensors_of
from fedwidth.run import checkpoint
from fedwidth.settings import Settings

Weights = Mapping[str, Tensor]


def read_weights(source: str | Path) -> Weights:
    """The tensors of a safetensors file by name, or the state that the checkpoint of a run folder holds."""
    path = Path(source).expanduser()
    if path.is_dir():
        path = path / checkpoint.NAME
        if not path.exists():
            raise StateError(f"model.weights is '{source}', a folder without {checkpoint.NAME}: no run was saved there")
    if not path.is_file():
        raise StateError(f"model.weights is '{source}', but there is no such file or folder")
    try:
        with safe_open(path, "pt") as file:
            if "fedwidth" not in (file.metadata() or {}):
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, OSError) as error:
        raise StateError(f"model.weights is '{source}', which is no file of safetensors: {error}") from error
    return checkpoint.read_state(path)


def fits(model: nn.Module, weights: Weights) -> bool:
    """Whether every tensor that both have is of one shape."""
    own, _ = tensors_of(model)
    return all(own[name].shape == tensor.shape for name, tensor in weights.items() if name in own)


def warm_start(model: nn.Module, weights: Weights, source: str, fresh: str = "") -> None:
    """Copy weights into a model; tensors whose names match `fresh` (patterns, with commas between) stay as they are.

    A second name of a shared tensor and buffers that are never saved may be missing.
    """
    own, tied = tensors_of(model)
    unsaved = own.keys() - model.state_dict().keys()
    patterns = [pattern.strip() for pattern in fresh.split(",") if pattern.strip()]
    anew = {name for name in own if any(fnmatchcase(name, pattern) for pattern in patterns)}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in own):
            raise StateError(f"model.fresh names '{pattern}', but the model has no such tensor")
    missing = [name for name in own if name not in weights and name not in tied and name not in unsaved | anew]
    if missing:
        raise StateError(
            f"{source} lacks {_some(missing)} of the model: if they are to begin anew, say so with model.fresh"
        )
    if more := [name for name in weights if name not in own]:
        raise StateError(f"{source} holds {_some(more)}, which the model does not have: is it of another model?")
    taken = {name: tensor for name, tensor in weights.items() if name not in anew}
    if (bad := not_finite(taken)) is not None:
        raise StateError(f"{source} has a value in '{bad}' that is not finite, with which no client could train")
    with torch.no_grad():
        for name, tensor in taken.items():
            if own[name].shape != tensor.shape:
                shapes = f"{list(tensor.shape)}, in the model {list(own[name].shape)}"
                raise StateError(f"{source} has another shape for '{name}': {shapes}; is it of another width?")
            own[name].copy_(tensor)


def plan_with_weights(model: nn.Module, settings: Settings, data: Data, objective: Objective) -> tuple[nn.Module, Plan]:
    """The model at the width the server holds, and its plan; with the weights that the settings name.

    Weights of another shape than the whole model's are taken as those of the narrower one.
    """
    wanted = settings.model
    weights = read_weights(wanted.weights) if wanted.weights else None
    of_whole = wanted.width == 1 or (weights is not None and fits(model, weights))

    def fill(made: nn.Module) -> None:
        if weights is not None:
            warm_start(made, weights, wanted.weights, wanted.fresh)

    if of_whole:
        fill(model)
        return plan_model(model, settings, data, objective)
    return plan_model(model, settings, data, objective, fill=fill)


def _some(names: list[str]) -> str:
    """The first of these names and how many there are."""
    return f"'{names[0]}'" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
