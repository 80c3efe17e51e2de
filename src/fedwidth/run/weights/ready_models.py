"""models.safetensors: what it takes to use a run's models without its data, written when the run ends.

Of the global model the file holds the statistics of its batch norms and the vectors of its spectral norms (the rest is
in the checkpoint); of the sub-model that stands for each width (`evaluation/representative.py`) all tensors, these
included. Statistics are those that the run's own evaluation collects: the models score what the run reported.
With `evaluation.norm = "batch"` the run measures with statistics of each test batch, which no model can carry;
static ones are collected all the same. The plan is stored, too: traced again, on other inputs, it may be another one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from fedwidth.core.index import Index
from fedwidth.core.part import Part
from fedwidth.data.stand_in import facts_of
from fedwidth.errors import StateError
from fedwidth.evaluation.evaluator import Evaluator
from fedwidth.evaluation.representative import LastRound, representative_index
from fedwidth.files import write_whole
from fedwidth.models.spectral_norm import vectors_of
from fedwidth.models.static_norm import norms_of
from fedwidth.plan import Plan
from fedwidth.plan.trace import tensors_of
from fedwidth.run.checkpoint import checksum, sealed, unharmed
from fedwidth.run.folder import MODELS
from fedwidth.run.weights.stored_plan import plan_as_json, read_plan
from fedwidth.training.server.state import Server

if TYPE_CHECKING:
    from fedwidth.experiment import Experiment

FORMAT = 1
MAX_WIDTHS = 16
"""A run in which every client has a capacity of its own keeps the models of so many; `load` makes the others."""
MADE_ANEW = "resume the run (--resume), or delete the file, and it is made anew from the checkpoint"
"""What to do about a file that cannot be used: nothing in it is lost."""


@dataclass(frozen=True)
class ReadyModels:
    """The contents of the file."""

    round: int
    """After so many rounds."""
    data: Mapping[str, Any]
    """What of the data the model depends on (`data/stand_in.py`)."""
    counts: Mapping[float, Mapping[str, int] | None]
    """How many units of each group the model of each capacity has; None for one that is no slice."""
    tensors: Mapping[float, Mapping[str, Tensor]]
    """Of each capacity; of capacity 1, the statistics alone."""
    plan: Plan | None = None
    """Of the run's model; an older version did not store it."""


def write_models(folder: Path, experiment: Experiment, server: Server, last: LastRound) -> None:
    """Write the file for the server's state; `last` says which sub-models stand for the widths."""
    evaluator = static(experiment.evaluator)
    tensors: dict[float, Mapping[str, Tensor]] = {}
    counts: dict[float, Mapping[str, int] | None] = {}
    evaluator.prepare(experiment.model, server.state)
    tensors[1.0] = statistics_of(experiment.model)
    for capacity in widths_of(experiment, last):
        part = part_of(experiment, capacity, last)
        if part is None or part.is_whole:
            continue
        made = ready_part(experiment, evaluator, part, server.state_at(capacity))
        tensors[capacity] = own_tensors(made)
        counts[capacity] = dict(part.counts) if isinstance(part, Index) else None
    _write(folder, ReadyModels(server.round, facts_of(experiment.data), counts, tensors), experiment.plan)


def add_plan(folder: Path, ready: ReadyModels, plan: Plan) -> bool:
    """Write the plan into a file that lacks it; whether these sub-models are slices of it.

    An earlier version may have sliced the model otherwise: then the file stays as it is.
    """
    for capacity, counts in ready.counts.items():
        if counts is None:
            continue
        if counts.keys() != plan.groups.keys():
            return False
        shapes, tensors = plan.narrow_shapes(counts), ready.tensors[capacity]
        if any(name in shapes and shapes[name] != tensor.shape for name, tensor in tensors.items()):
            return False
    _write(folder, ready, plan)
    return True


def _write(folder: Path, ready: ReadyModels, plan: Plan) -> None:
    flat = {
        f"{1 if capacity == 1 else capacity}/{name}": tensor.cpu().contiguous()
        for capacity, held in ready.tensors.items()
        for name, tensor in held.items()
    }
    facts = {
        "format": FORMAT,
        "round": ready.round,
        "data": ready.data,
        "counts": {str(capacity): counts for capacity, counts in ready.counts.items()},
        "plan": plan_as_json(plan),
        "checksum": checksum(flat),
    }
    write_whole(folder / MODELS, save(flat, metadata={"fedwidth": json.dumps(sealed(facts))}))


def read_models(folder: Path, *, round: int) -> ReadyModels | None:
    """What the file says of the state after so many rounds; None without a file, or with one of another round."""
    path = folder / MODELS
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {}).get("fedwidth", "null"))
            flat = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, OSError) as error:
        raise StateError(f"{path} is damaged: {error}; {MADE_ANEW}") from error
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise StateError(f"{path} was written by another version of fedwidth: {MADE_ANEW}")
    if not unharmed(facts) or facts.get("checksum") != checksum(flat):
        raise StateError(f"{path} is damaged: its checksum does not fit its content; {MADE_ANEW}")
    if facts["round"] != round:
        return None
    tensors: dict[float, dict[str, Tensor]] = {1.0: {}}
    for name, tensor in flat.items():
        key, _, own = name.partition("/")
        tensors.setdefault(float(key), {})[own] = tensor
    counts = {float(key): held for key, held in facts["counts"].items()}
    return ReadyModels(facts["round"], facts["data"], counts, tensors, read_plan(facts.get("plan")))


def readable_models(folder: Path, *, round: int) -> ReadyModels | None:
    """What the file says of the state after so many rounds; None where there is none, or it cannot be read."""
    try:
        return read_models(folder, round=round)
    except StateError:
        return None


def widths_of(experiment: Experiment, last: LastRound) -> list[float]:
    """The capacities whose models are kept: those that are measured, then those that devices have, widest first."""
    came = sorted((capacity for _, capacity in last.cohort), reverse=True)  # real devices may state others than the mix
    asked = (*experiment.settings.evaluation.capacities, *experiment.method.enrolled, *came)
    return [capacity for capacity in dict.fromkeys(map(float, asked)) if capacity < 1][:MAX_WIDTHS]


def part_of(experiment: Experiment, capacity: float, last: LastRound) -> Part | None:
    """The part that stands for a capacity; None where every client has its own, and nobody of this capacity."""
    method = experiment.method
    if "own" in method.reads and all(own != capacity for _, own in last.cohort):
        return None
    found: Part = representative_index(method, experiment.plan, capacity, last)
    return found


def ready_part(experiment: Experiment, evaluator: Evaluator, part: Part, state: Mapping[str, Tensor]) -> nn.Module:
    """A module with this part of a state, its statistics collected."""
    made = part.module(experiment.model, experiment.plan).to(experiment.device)
    return evaluator.prepare(made, part.cut(state, experiment.plan))


def static(evaluator: Evaluator) -> Evaluator:
    """The same evaluator, which collects statistics whatever the run measures with."""
    settings = evaluator.settings
    return replace(evaluator, settings=replace(settings, evaluation=replace(settings.evaluation, norm="static")))


def statistics_of(model: nn.Module) -> dict[str, Tensor]:
    """The statistics that the model's batch norms hold and the vectors of its spectral norms, by name."""
    norms, vectors = {id(norm) for norm in norms_of(model)}, vectors_of(model)
    return {
        f"{path}.{name}" if path else name: buffer.detach()
        for path, module in model.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
        if id(module) in norms or id(buffer) in vectors
    }


def own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers by name, tied ones once."""
    found, tied = tensors_of(model)
    return {name: tensor.detach() for name, tensor in found.items() if name not in tied and not is_odd(tensor)}


def is_odd(tensor: Tensor) -> bool:
    """Whether it is of a kind that safetensors cannot hold."""
    return tensor.is_complex() or tensor.layout != torch.strided
