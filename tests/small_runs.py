"""Runs small enough to repeat many times, and how to compare them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedwidth.config.read import read_settings
from fedwidth.data import Data, Partition, Shares, from_tensors
from fedwidth.experiment import Experiment, Stopped
from fedwidth.methods import Task, method
from fedwidth.models import Scaler
from fedwidth.plan import trace
from fedwidth.reproduce.running import reproduce
from fedwidth.reproduce.table_runs import Packed
from fedwidth.run.checkpoint import NAME
from fedwidth.run.recorder import Result
from fedwidth.settings import Settings
from fedwidth.training.client import Trainer

RECIPE = """
rounds = 3
model.name = "mlp"
model.options = { hidden = [8] }
data.clients = 6
data.partition = "labels"
data.partition_options = { per_client = 5 }
devices.per_round = 3
devices.capacities = "a1-b1-c1"
training.batch_size = 64
evaluation.every = 2
engine = "serial"
"""


def small(*changes: str) -> Settings:
    """The settings of a small run on digits, with changes as `--set` takes them."""
    return read_settings(RECIPE, changes).main


def write_recipe(folder: Path, more: str = "") -> str:
    """A recipe file of that run."""
    path = folder / "small.toml"
    path.write_text(RECIPE + more)
    return str(path)


def evaluated(folder: Path, *, packed: Packed) -> dict[tuple[str, int], list[list]]:
    """The evaluations of `table.toml` in a folder, run with seeds 1 and 2, by label and seed.

    Without the losses, which may differ in the last digit where models are evaluated together.
    """
    found = reproduce(
        [str(folder / "table.toml")],
        seeds=[1, 2],
        packed=packed,
        results=folder / f"results-{packed}",
        work=folder / f"work-{packed}",
        say=lambda _: None,
    )
    return {(each.label, each.seed): [row[:3] for row in each.evaluations] for each in found.done}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def contents(folder: Path) -> tuple[dict, list[dict], bytes]:
    """What must not depend on how often a run was interrupted: everything but the seconds."""
    summary = json.loads((folder / "summary.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for record in (summary, *lines):
        record.pop("seconds")
    saved = (folder / NAME).read_bytes()
    header = int.from_bytes(saved[:8], "little")
    return summary, lines, saved[8 + header :]  # the header says how many seconds went by


class TwoUnits(nn.Module):
    """Logits b·(a·x) with a hidden layer of two units: small enough to differentiate by hand.

    With a = (1, 2), b the identity and x = 1 the logits are (1, 2); the first unit alone gives (1, 0).
    """

    def __init__(self, *, scaler: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.a = nn.Linear(1, 2, bias=False)
        self.scaler = Scaler() if scaler else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.b = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.a.weight.copy_(torch.tensor([[1.0], [2.0]]))
            self.b.weight.copy_(torch.eye(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.dropout(self.scaler(self.a(x))))


def ones(clients: int = 1, per_client: int = 1) -> tuple[Data, Partition]:
    """Every sample is x = 1 with label 0; label 1 exists, but nobody has it."""
    number = clients * per_client
    x, y = torch.ones(number, 1), torch.zeros(number, dtype=torch.long)
    data = from_tensors(x, y, x, y, classes=2)
    owners = torch.arange(clients).repeat_interleave(per_client).numpy()
    shares = Shares.of(owners, clients)
    return data, Partition("by hand", shares, shares, data.train.targets)


def trainer_of(model: nn.Module, data: Data, partition: Partition, *changes: str, name: str = "fedavg", **options):
    """A trainer with plain SGD of rate 0.1 and nothing else that could get in the way of a sum by hand."""
    plain = ["training.momentum=0", "training.weight_decay=0", "training.clip=0", "training.mask=none"]
    settings = read_settings("training.lr=0.1", [*plain, *changes]).main
    plan = trace(model, data.example())
    return Trainer(model, plan, data, partition, method(name, **options), settings)


def task_of(trainer: Trainer, *, client: int = 0, capacity: float = 1.0, round: int = 0) -> Task:
    """The task of one client alone in its round."""
    return trainer.method.assign(trainer.plan, [(client, capacity)], round)[0]


def whole_and_resumed(settings: Settings, folder: Path) -> tuple[Result, Result]:
    """A run from its beginning to its end, and one that is stopped after its second round and then goes on."""
    whole = Experiment(settings).run(folder / "whole")
    calls = iter((False, True))
    with pytest.raises(Stopped):
        Experiment(settings).run(folder / "parts", stop=lambda: next(calls))
    return whole, Experiment(settings).run(folder / "parts", resume=True)
