"""Trains one task on a device: takes the facts and tensors of the task, returns those of the answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedwidth.config.build import build_model, find_device, load_data, plan_model, split_data, trace_model, trace_on
from fedwidth.config.method_settings import method_of
from fedwidth.config.read import read_settings
from fedwidth.core.index import Index
from fedwidth.core.tensor_bytes import TensorBytes
from fedwidth.data import IGNORE, Data, Partition, Shares
from fedwidth.data.records import moved
from fedwidth.deployment.node.wire import Raw
from fedwidth.errors import OptionError, SecureError
from fedwidth.methods import Task
from fedwidth.objectives import Objective, objective_of
from fedwidth.plan import Plan
from fedwidth.randomness import host_kept
from fedwidth.settings import Settings
from fedwidth.training.allocator import give_back_memory
from fedwidth.training.client import Trained, Trainer

SENT, REPORT = "sent", "report"
"""How the names of tensors begin that travel beside a sub-model, down and up: `sent/NAME/TENSOR`."""

SMALL = 50_000_000
"""Bytes of weights up to which a model is traced with its values: without them PyTorch imports what takes 70 MB."""

Load = Callable[[Settings, int | None], Data]
"""The function that `load = "package.module:function"` names: gives the data of a client, or for None the server's."""


class DevicePartition(Partition):
    """The partition where a device has data of its own: whichever client it is, all of the data is its.

    It is a `Partition`, because an experiment takes no other, with a client whose share stands for everybody's.
    """

    def __init__(self, data: Data, clients: int) -> None:
        everything = Shares.of(np.zeros(len(data.train), np.int64), 1)
        super().__init__("of its own", everything, everything, data.train.labels[:])
        object.__setattr__(self, "data", data)
        object.__setattr__(self, "clients", clients)

    data: Data
    clients: int

    def __len__(self) -> int:
        return self.clients

    def __getitem__(self, client: int) -> Tensor:
        return torch.arange(len(self.data.train))

    def size(self, client: int) -> int:
        """How many training samples the client has."""
        del client
        return len(self.data.train)

    @cached_property
    def labels(self) -> Any:
        """The labels that occur in the data, the same for every client."""
        found = torch.unique(self.data.train.labels[:])
        known = found[found != IGNORE].long()
        return defaultdict(lambda: known)


def train_here(facts: Mapping[str, Any], tensors: Mapping[str, Raw]) -> tuple[dict[str, Any], dict[str, Raw]]:
    """Train one task in this process; the ClientApp and the device's trainer call this."""
    if is_secure(facts["recipe"]):
        raise SecureError("secure sums need the resident trainer: start this device by its start.sh")
    trainer, _, _, trained = train_task(facts, tensors)
    update = trained.update
    answer: dict[str, Any] = {name: facts[name] for name in ("token", "round", "client", "index")}
    answer |= {"weight": update.weight, "passes": trained.passes, "loss": trained.loss}
    if update.labels is not None:
        answer["labels"] = update.labels.tolist()
    reports: dict[str, Raw] = {
        f"{REPORT}/{report}/{name}": TensorBytes.of(t, copy=True)
        for report, tensors in {**update.reports, **trained.kept}.items()
        for name, t in tensors.items()
    }
    trained_tensors: dict[str, Raw] = {
        name: TensorBytes.of(t, copy=True) for name, t in update.sub.items() if name not in trainer.plan.tied
    }
    return answer, trained_tensors | reports


@lru_cache(maxsize=2)
def is_secure(recipe: str) -> bool:
    """Whether a recipe has secure sums."""
    return read_settings(recipe).main.secure.enabled


def train_task(
    facts: Mapping[str, Any], tensors: Mapping[str, Raw]
) -> tuple[Trainer, Task, dict[str, Tensor], Trained]:
    """Train one task; returns the trainer, the task, the sub-model as it came, and what training made of it."""
    # One thread unless the node asks for more: sums then have one order, as in every other engine.
    threads = max(1, int(facts.get("threads", 1)))
    torch.set_num_threads(threads)
    give_back_memory()
    trainer = trainer_of(facts["recipe"], facts["load"], int(facts["client"]), threads=threads)
    try:
        return trainer, *_train(trainer, facts, tensors)
    except NotImplementedError:  # the module holds tensors that are neither parameters nor buffers
        trainer = trainer_of(facts["recipe"], facts["load"], int(facts["client"]), threads=threads, light=False)
        return trainer, *_train(trainer, facts, tensors)


def _train(
    trainer: Trainer, facts: Mapping[str, Any], tensors: Mapping[str, Raw]
) -> tuple[Task, dict[str, Tensor], Trained]:
    counts = dict(zip(facts["groups"], facts["counts"], strict=True))
    # The node knows how many units it holds, not which: a prefix of that size has the same shapes.
    index = Index.of_units(trainer.plan, {name: range(count) for name, count in counts.items()})
    known = trainer.method.nested(trainer.method.values) and "state" not in trainer.method.reads
    if trainer.rule.local.loss is not None and known:
        # It may train narrower sub-models, and must know where they lie.
        found = trainer.method.select(
            trainer.plan,
            capacity=float(facts["capacity"]),
            round=int(facts["round"]),
            seed=trainer.settings.seed,
        )
        index = found if found.key == facts["index"] else index
    task = Task(int(facts["client"]), float(facts["capacity"]), index, 0)
    found = {name: TensorBytes(*raw).tensor(copy=True) for name, raw in tensors.items()}
    sent: dict[str, Mapping[str, Tensor] | float] = {**grouped(found, SENT)}
    sent |= dict(zip(facts.get("numbers", ()), facts.get("values", ()), strict=True))
    own = {name: tensor for name, tensor in found.items() if not name.startswith(f"{SENT}/")}
    sub = with_tied(own, trainer.plan.tied)
    with host_kept():  # what the rest of the process draws is not for others to know
        return task, sub, trainer.train(sub, task, int(facts["round"]), sent)


@lru_cache(maxsize=2)
def trainer_of(recipe: str, load: str, client: int, *, threads: int = 1, light: bool = True) -> Trainer:
    """The trainer of a recipe, cached so that a process that stays up builds model, plan and data once.

    `light` builds the global model without its values: a device that can afford a sixteenth of it cannot hold it.
    """
    settings = read_settings(recipe).main
    data, partition = load_parts(settings, load, client)
    device = find_device(settings.device)
    objective = objective_of(settings.objective, data)
    plain = settings.model.width == 1 and not settings.adapter.rank
    found = _plan_light(settings, data, objective) if light and plain else None
    if found is None:
        model, plan = plan_model(build_model(settings, data, objective), settings, data, objective)
        found = model.to(device), plan
    chosen = method_of(settings)
    return Trainer(
        *found, data.to(device), partition, chosen, settings, device=device, objective=objective, threads=threads
    )


def _plan_light(settings: Settings, data: Data, objective: Objective) -> tuple[nn.Module, Plan] | None:
    """The model on PyTorch's meta device, and its plan; None where the model cannot be built or traced there."""
    try:
        with torch.device("meta"):
            model = build_model(settings, data, objective)
        tensors = [*model.parameters(), *model.buffers()]
        if not all(tensor.is_meta for tensor in tensors):
            return None
        if any(tensor.dim() == 0 and tensor.is_floating_point() for tensor in model.buffers()):
            return None  # it may be the root of a width, which only its value tells
        if sum(tensor.numel() * tensor.element_size() for tensor in tensors) <= SMALL:
            model = build_model(settings, data, objective)
            plan = trace_on(model, data, settings, objective)
            return model.to("meta"), plan
        return model, trace_model(model, moved(data.example(), "meta"), settings, objective)
    except Exception:  # a model may do anything while it is built, and look at its values
        return None


def load_parts(settings: Settings, load: str, client: int | None) -> tuple[Data, Partition]:
    """The data and its partition: those that the recipe names, or the data that `package.module:function` returns."""
    if not load:
        data = load_data(settings)
        return data, split_data(settings, data)
    devices = settings.devices
    needed = {
        "data.validation": settings.data.validation,
        "data.public": settings.data.public,
        "devices.deadline": devices.deadline,
        "devices.correlate": devices.correlate != "none",
    }
    for name, wanted in needed.items():
        if wanted:
            raise OptionError(f"{name} needs data that the recipe names, but load gives each device its own")
    module, _, name = load.partition(":")
    try:
        function: Load = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(f"load is '{load}', which must be package.module:function ({error})") from None
    found = function(settings, client)
    if not isinstance(found, Data):
        raise OptionError(f"{load}(settings, client) must return Data, not a {type(found).__name__}")
    return found, DevicePartition(found, settings.data.clients)


def grouped(tensors: Mapping[str, Tensor], kind: str) -> dict[str, dict[str, Tensor]]:
    """The tensors that travel beside a sub-model, by what they are and by the sub-model's tensor they belong to.

    >>> grouped({"sent/control/a": torch.zeros(1), "a": torch.ones(1)}, SENT)
    {'control': {'a': tensor([0.])}}
    """
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(f"{kind}/"):
            _, own, rest = name.split("/", 2)
            found.setdefault(own, {})[rest] = tensor
    return found


def with_tied(tensors: dict[str, Tensor], tied: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors under all of their names: tied ones, which are sent once, under each name that shares them."""
    return tensors | {name: tensors[first] for name, first in tied.items() if first in tensors}
