"""Weights as a safetensors file that says how to build the model it is of, and the way back from the file."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

import fedwidth
from fedwidth.config.given import check_kinds
from fedwidth.config.method_settings import method_of
from fedwidth.config.read import read_settings
from fedwidth.config.write import settings_toml
from fedwidth.core.narrow import skeleton, with_buffers
from fedwidth.data.stand_in import stand_in
from fedwidth.errors import OptionError, StateError
from fedwidth.export.load import Taken, fill_all, global_model, model_of, plan_of_older, refuse_without
from fedwidth.objectives import objective_of
from fedwidth.run.checkpoint import checksum, sealed, unharmed
from fedwidth.run.weights.ready_models import own_tensors
from fedwidth.run.weights.stored_plan import plan_as_json, read_plan
from fedwidth.settings import LocalSettings, MethodSettings

KEY, FORMAT = "fedwidth.model", 1


def recipe_of(taken: Taken) -> dict[str, Any]:
    """How to build the model, as JSON has it; `open_file` needs nothing else but the tensors and the plan."""
    settings, (name, options) = taken.settings, model_of(taken)
    here = replace(settings, data=replace(settings.data, root=""), model=replace(settings.model, weights="", fresh=""))
    # Where adapters are merged, a method that is defined for them would make some anew.
    if not settings.adapter.rank and method_of(settings).adapters:
        here = replace(here, method=MethodSettings("fedavg"), local=LocalSettings())
    return {
        "format": FORMAT,
        "fedwidth": fedwidth.__version__,
        "model": {"name": name, "options": options},
        **({"given": dict(taken.given)} if taken.given else {}),
        "capacity": taken.capacity,
        **({"together": list(taken.together)} if taken.together else {}),
        **({"several": [recipe_of(each) for each in taken.several]} if taken.several else {}),
        "counts": taken.counts,
        "rounds": taken.round,
        "data": taken.facts,
        "config": settings_toml(here),
    }


def as_bytes(taken: Taken) -> bytes:
    """The model as a safetensors file; the recipe is in its metadata."""
    if taken.together or taken.several:
        raise OptionError(
            "safetensors holds the weights of one model, and not of several that answer together: export them as torch,"
            " onnx or executorch, or each run and width by itself"
        )
    if taken.counts is None:
        raise OptionError(
            f"{taken.settings.method.name} gives devices models that are no slices, which a file of tensors cannot say"
            " how to build: export them as torch, onnx or executorch"
        )
    tensors = {name: tensor.contiguous() for name, tensor in own_tensors(taken.model).items()}
    recipe = {**recipe_of(taken), "plan": plan_as_json(taken.plan), "checksum": checksum(tensors)}
    return save(tensors, metadata={"format": "pt", KEY: json.dumps(sealed(recipe))})


def open_file(path: Path, *, model: nn.Module | None = None) -> nn.Module:
    """The model of a file that `as_bytes` made, ready to use."""
    check_kinds(model=model)
    if not path.is_file():
        raise StateError(f"there is no file {path}")
    try:
        with safe_open(path, "pt") as file:
            recipe = json.loads((file.metadata() or {}).get(KEY, "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, OSError) as error:
        zipped = f"; torch.export.load('{path}').module() opens it if it is a torch.export program"
        hint = zipped if zipfile.is_zipfile(path) else ""
        raise StateError(f"{path} is no file of safetensors, or damaged: {error}{hint}") from error
    if not isinstance(recipe, dict) or recipe.get("format") != FORMAT:
        raise StateError(f"{path} was not written by `fedwidth export`: it does not say how to build its model")
    if not unharmed(recipe) or recipe.get("checksum") != checksum(tensors):
        raise StateError(f"{path} is damaged: its checksum does not fit its content")
    if model is None:
        refuse_without(recipe.get("given", {}), "model", str(path))
    settings, data = read_settings(recipe["config"]).main, stand_in(recipe["data"])
    objective, stored = objective_of(settings.objective, data), read_plan(recipe.get("plan"))
    whole, plan = global_model(settings, data, objective, model, stored)
    with plan_of_older(stored, None, "resume its run (--resume) where that is older, too, and export it again"):
        made = skeleton(whole, plan, recipe["counts"])
        fill_all(made, tensors, str(path), model)
    return with_buffers(made, plan).eval()
