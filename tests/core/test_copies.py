"""Models that keep tensors which autograd computed are copied, trained and taken out of a run like any other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedwidth
from fedwidth.adapters import adapt, merge
from fedwidth.core.narrow import copy_model
from fedwidth.data import from_tensors
from fedwidth.experiment import Experiment
from fedwidth.export import export_run
from small_runs import small


class Convolution(nn.Module):
    """The older weight norm keeps the weight it computed as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.utils.weight_norm(nn.Conv1d(3, 16, 3, padding=1))
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.last(torch.relu(self.inner(x)).mean(-1))


class Recurrent(nn.Module):
    """A recurrent layer keeps the computed weight in a list."""

    def __init__(self) -> None:
        super().__init__()
        gru = nn.GRU(3, 16, batch_first=True)
        self.inner = nn.utils.parametrizations.weight_norm(gru, "weight_hh_l0")
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.last(self.inner(x.mT)[0][:, -1])


class Keeping(nn.Module):
    """A model that keeps its last features in lists of dictionaries, one of which holds itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(24, 8), nn.Linear(8, 3)
        self.kept: list = [{}]
        self.kept.append(self.kept)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        self.kept[0]["features"] = torch.relu(self.first(x.flatten(1)))
        return self.last(self.kept[0]["features"])


def held(value: Any, seen: set[int]) -> Iterator[int]:
    """Where in memory the tensors lie that a value holds: a tensor, or a module, list or dictionary of some."""
    if id(value) in seen:  # containers may hold themselves
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value.untyped_storage().data_ptr()
    inner = vars(value) if isinstance(value, nn.Module) else value
    inner = list(inner.values()) if isinstance(inner, dict) else inner
    for each in inner if isinstance(inner, (list, tuple, set)) else ():
        yield from held(each, seen)


MODELS = [Convolution, Recurrent, Keeping]
PICTURES = torch.randn(60, 3, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(60) % 3


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", MODELS)
def test_a_copy_computes_the_same_and_shares_nothing(kind: type[nn.Module]) -> None:
    model = kind()
    expected = model(PICTURES)  # leaves computed tensors behind
    made = copy_model(model)
    assert len(own := set(held(model, set()))) > len(list(model.parameters())), "what was computed is not among them"
    assert own.isdisjoint(held(made, set()))
    assert torch.equal(made(PICTURES), expected)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(2)
    assert not torch.equal(made(PICTURES), expected)
    assert torch.equal(model(PICTURES), expected)


def test_adapters_are_put_on_and_merged() -> None:
    model = Keeping()
    model(PICTURES)
    adapted = adapt(model, rank=2, targets=["first"])
    expected = adapted(PICTURES)
    torch.testing.assert_close(merge(adapted)(PICTURES), expected)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize(
    ("kind", "engine"),
    [*((kind, "serial") for kind in MODELS), (Convolution, "processes"), (Keeping, "processes")],
)  # PyTorch itself sends no parametrised module to another process
def test_it_is_trained_and_taken_out_at_every_width(tmp_path: Path, kind: type[nn.Module], engine: str) -> None:
    model = kind()
    model(PICTURES).sum().backward()
    settings = small(
        "rounds=1", f"engine={engine}", "data.partition=iid", "data.partition_options={}",
        "devices.capacities='1:1 1/2:1'", "evaluation.capacities=[1,0.5]",
    )  # fmt: skip
    data = from_tensors(PICTURES, LABELS, PICTURES, LABELS)
    result = Experiment(settings, model=model, data=data).run(tmp_path / "run")
    taken = fedwidth.load(tmp_path / "run", 0.5, model=model)
    with torch.no_grad():
        right = (taken(PICTURES).argmax(1) == LABELS).double().mean().item()
    assert result.summary["capacity_accuracy"]["0.5"] == pytest.approx(right)
    export_run(tmp_path / "run", tmp_path / "model.safetensors", capacity=0.5, model=model)
