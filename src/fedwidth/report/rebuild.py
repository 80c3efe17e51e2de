"""The model of a run, built again from its settings, to see which weights its rounds trained and what they cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass, replace
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn

from fedwidth.config.architectures import build_architectures
from fedwidth.config.build import build_model, plan_key, plan_model
from fedwidth.config.given import describe_given, given_in
from fedwidth.config.method_settings import method_of
from fedwidth.config.schema import build
from fedwidth.core.architectures import Architectures
from fedwidth.core.cost import Cost
from fedwidth.core.part import Part
from fedwidth.core.submodel import state_of
from fedwidth.data import Data, load
from fedwidth.devices.cohorts import Cohorts
from fedwidth.devices.memory import Memory
from fedwidth.errors import FedwidthError, OptionError
from fedwidth.methods import Beginning, Method
from fedwidth.objectives import objective_of
from fedwidth.objectives.played import step_memory
from fedwidth.plan import Plan
from fedwidth.report.runs import Run
from fedwidth.run.checkpoint import NAME
from fedwidth.settings import Settings

Built = tuple[nn.Module, Plan, Any, dict[Hashable, Cost]]
"""A model, its plan, an example of its inputs, and the costs of its sub-models found so far."""


@dataclass(frozen=True)
class Rebuilt:
    """The global model of a run as it was before training, and what slices it."""

    settings: Settings
    method: Method
    model: nn.Module
    plan: Plan
    example: Any
    """Inputs as the model takes them."""
    costs: dict[Hashable, Cost]
    """The costs found so far, by the size of the sub-model; runs with one model share them."""
    takes: Callable[[nn.Module], Memory] | None = None
    """What training a module takes of a device's memory, for methods that choose by it."""

    def narrows(self, capacity: float) -> bool:
        """True where the method gives a client of this capacity less than the whole model."""
        return not self._part(capacity).is_whole

    def cost(self, capacity: float) -> Cost:
        """What the sub-model of this capacity costs."""
        part = self._part(capacity)
        if part.size not in self.costs:
            self.costs[part.size] = part.cost(self.model, self.plan, self.example, capacity=capacity)
        return self.costs[part.size]

    def _part(self, capacity: float) -> Part:
        """What a client of this capacity holds, as far as size goes; which units may depend on the trained state."""
        state = state_of(self.model)
        beginning = Beginning(state, self.plan, enrolled=(1.0, capacity), options=self.method.values)
        if self.method.freezes:  # which layers depends on what they take
            beginning = replace(beginning, model=self.model, takes=self.takes)
        memory = self.method.first_memory(beginning)
        part: Part = self.method.select(self.plan, capacity=capacity, state=state, memory=memory)
        return part


class ModelRebuilder:
    """Builds the models of runs again from their settings, each distinct one once.

    A config may name a model as package.module:factory. Building that one imports code, which a page about somebody
    else's folder must not do unasked: `own_models` is the permission.
    """

    def __init__(self, *, own_models: bool = False) -> None:
        self._own_models = own_models
        self._data: dict[str, Data] = {}
        self._built: dict[str, Built] = {}

    def rebuild(self, run: Run) -> Rebuilt | str:
        """The model of the run, or one sentence why it cannot be built here."""
        try:
            given = given_in(run.config)
            if unknown := {name: title for name, title in given.items() if name not in ("partition", "public")}:
                raise OptionError(f"{describe_given(unknown)}, and a report does not have what its program has")
            settings = build(Settings, run.settings)
            for kind, name in _names(settings):
                if ":" in name and not self._own_models:
                    raise OptionError(f"the {kind} '{name}' is code of its own, which a report does not import")
            found = self._model(settings)
            architectures, enrolled = self._architectures(settings), Cohorts.of(settings).enrolled
            chosen = replace(method_of(settings), architectures=architectures, enrolled=enrolled)
            _check_same(run, found[1])
            data = self._load(settings)
            takes = step_memory(objective_of(settings.objective, data), data, settings)
        except Exception as error:  # a model of the user's may fail in any way; the page must not
            return said(error)
        return Rebuilt(settings, chosen, *found, takes=takes)

    def _model(self, settings: Settings) -> Built:
        parts = [asdict(settings.data), *map(asdict, settings.models)]
        key = json.dumps(parts, sort_keys=True) + plan_key(settings)
        if key not in self._built:
            data = self._load(settings)
            model, plan = plan_model(build_model(settings, data), settings, data)
            self._built[key] = model, plan, data.example(), {}
        return self._built[key]

    def _architectures(self, settings: Settings) -> Architectures:
        if not settings.models:
            return {}
        data = self._load(settings)
        return build_architectures(settings, data, objective_of(settings.objective, data))

    def _load(self, settings: Settings) -> Data:
        data = settings.data
        key = json.dumps([data.name, data.root, data.options], sort_keys=True)
        if key not in self._data:
            self._data[key] = load(
                data.name, data.root or None, download=False, cache=data.cache or None, **data.options
            )
        return self._data[key]


def _names(settings: Settings) -> list[tuple[str, str]]:
    """What may be code of the user's own, and how the settings name it."""
    objective = settings.objective
    return [
        ("method", settings.method.name),
        ("method", settings.local.name),
        ("model", settings.model.name),
        *(("model", each.name) for each in settings.models),
        ("data set", settings.data.name),
        *(("objective", name) for name in (objective.name, objective.loss, objective.metric)),
    ]


def said(error: Exception) -> str:
    """An error as the page gives it for a reason, in one line."""
    text = " ".join(str(error).split())[:300]
    return text if isinstance(error, FedwidthError) else f"{type(error).__name__}: {text}"


def _check_same(run: Run, plan: Plan) -> None:
    """Refuse where the run's checkpoint holds other tensors: it was given a model that its settings do not name."""
    path = run.folder / NAME
    if not path.exists():
        return
    try:
        with safe_open(path, "pt") as file:
            prefix = "state."
            names: list[Any] = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
            shapes = {name.removeprefix(prefix): tuple(file.get_slice(name).get_shape()) for name in names}
    except (SafetensorError, OSError):
        return  # a checkpoint nobody can read says nothing against the settings
    if shapes and any(plan.shapes.get(name) != shape for name, shape in shapes.items()):
        raise OptionError("the checkpoint holds another model than the settings name")
