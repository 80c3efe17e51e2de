"""The architectures of a run: what its settings name, or what was given in Python, made and checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from torch import nn

from fedwidth.config.build import build_model, plan_model
from fedwidth.config.given import copied
from fedwidth.core.architectures import Architecture, Architectures
from fedwidth.data import Data
from fedwidth.devices.capacity import Capacities
from fedwidth.errors import OptionError, unknown
from fedwidth.methods import Method
from fedwidth.methods.lookup.families import traits_of
from fedwidth.models.catalogue import FACTORIES
from fedwidth.objectives import Objective
from fedwidth.settings import ArchitectureSettings, ModelSettings, Settings

_LABEL = re.compile(r"[A-Za-z][\w-]*", re.ASCII)


def label_of(entry: ArchitectureSettings) -> str:
    """What an architecture is called: its label, or the name of its model or factory."""
    return entry.label or entry.name.rpartition(":")[2]


def check_architectures(settings: Settings, method: Method) -> None:
    """Refuse architectures that the method has no use for, that nobody holds, or that are not named right."""
    enrolled = Capacities.parse(settings.devices.capacities).enrolled()
    if settings.models:
        _check_method(method)
        if settings.adapter.rank:
            raise OptionError("adapter.rank and [[models]] do not go together: adapters are those of one model")
    for entry in settings.models:
        if not entry.name:
            raise OptionError("every table of [[models]] needs a name: that of a model, or package.module:factory")
        if ":" not in entry.name and entry.name not in FACTORIES:
            raise unknown("model", entry.name, [*FACTORIES, "package.module:factory"])
        _check_label(label_of(entry))
        if not entry.capacities:
            raise OptionError(f"models.capacities of '{label_of(entry)}' must name at least one capacity")
    _check_capacities([capacity for entry in settings.models for capacity in entry.capacities], enrolled)
    labels = [label_of(entry) for entry in settings.models]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise OptionError(f"two of [[models]] are called '{twice[0]}': give each a label of its own")


def build_architectures(settings: Settings, data: Data, objective: Objective) -> Architectures:
    """The architectures that the settings name, by the capacities that hold them; each begins from the run's seed."""
    found: dict[float, Architecture] = {}
    for entry in settings.models:
        own = replace(settings, model=ModelSettings(entry.name, entry.options), models=[])
        model, plan = plan_model(build_model(own, data, objective), own, data, objective)
        made = Architecture.of(label_of(entry), model, plan)
        found |= {float(capacity): made for capacity in entry.capacities}
    return found


def given_architectures(
    models: Mapping[float, nn.Module], settings: Settings, method: Method, data: Data, objective: Objective
) -> Architectures:
    """Networks that were given in Python by the capacities that hold them; one object is one architecture."""
    if settings.models:
        raise OptionError("models were given in Python, and the settings name some too: give them in one place")
    _check_method(method)
    _check_capacities(models, Capacities.parse(settings.devices.capacities).enrolled())
    made: dict[int, Architecture] = {}
    plain = replace(settings, model=ModelSettings())
    for model in models.values():
        if not isinstance(model, nn.Module):
            raise OptionError(f"models must be torch.nn.Module by capacity, not a {type(model).__name__}")
        if id(model) not in made:
            known = [one.name for one in made.values()]
            kind = re.sub(r"\W", "-", type(model).__name__, flags=re.ASCII).strip("-_0123456789") or "model"
            name = kind if kind not in known else f"{kind}-{len(known) + 1}"
            made[id(model)] = Architecture.of(name, *plan_model(copied(model), plain, data, objective))
    return {float(capacity): made[id(model)] for capacity, model in models.items()}


def check_dtypes(model: nn.Module, architectures: Architectures) -> None:
    """Refuse networks that compute in other numbers than the run's model."""
    wanted = next(model.parameters()).dtype
    for one in dict.fromkeys(architectures.values()):
        if (found := next(one.model.parameters()).dtype) != wanted:
            raise OptionError(f"'{one.name}' of the run's models has {found}, and the run's own model {wanted}")


def check_gradients(model: nn.Module, architectures: Architectures) -> None:
    """Refuse networks with sparse gradients, which are neither clipped nor turned into dense updates."""
    networks = {"": model} | {one.name: one.model for one in architectures.values()}
    for title, network in networks.items():
        for name, module in network.named_modules():
            if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse and module.weight.requires_grad:
                where = f" of '{title}'" if title else ""
                raise OptionError(
                    f"the {type(module).__name__} '{name}'{where} has sparse gradients, which clients cannot train"
                    " with: make it with sparse=False"
                )


def _check_method(method: Method) -> None:
    if not method.several:
        raise OptionError(
            f"{method.title} takes no [[models]]: every client holds {traits_of(method).holds}, which is averaged with"
            " those of others, so there is one architecture"
        )


def _check_label(label: str) -> None:
    if not _LABEL.fullmatch(label):
        raise OptionError(f"models.label must be letters, digits, - and _, from a letter on, not '{label}'")


def _check_capacities(named: Iterable[float], enrolled: Sequence[float]) -> None:
    seen: set[float] = set()
    for capacity in map(float, named):
        if capacity not in enrolled:
            allowed = ", ".join(f"{each:g}" for each in enrolled)
            raise OptionError(
                f"models.capacities names {capacity:g}, which no client has; devices.capacities: {allowed}"
            )
        if capacity in seen:
            raise OptionError(f"models.capacities names {capacity:g} twice: clients of a capacity hold one network")
        seen.add(capacity)
