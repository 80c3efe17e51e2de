"""A model as a program: its graph, traced with `torch.export`, from which the files for other runtimes are made."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from fedwidth.data.trees import Tree, leaves, mapped
from fedwidth.errors import PlanError
from fedwidth.importing import one_line
from fedwidth.models.static_norm import settled_statistics
from fedwidth.objectives import Objective

EXAMPLE_SAMPLES = 3
"""As many samples as no dimension of a usual model has, so that none is taken for the batch."""


class Answer(nn.Module):
    """A model that returns what counts of its output, and takes what it is given by name in order."""

    def __init__(self, model: nn.Module, output: Callable[[Any], Any], names: Sequence[str] = ()) -> None:
        super().__init__()
        self.model, self.output, self.names = model, output, tuple(names)

    def forward(self, *inputs: Tensor) -> Any:
        """What counts of the model's answer."""
        if self.names:
            return self.output(self.model(**dict(zip(self.names, inputs, strict=True))))
        return self.output(self.model(*inputs))


@dataclass(frozen=True)
class Program:
    """An exported graph, and how many samples it takes at a time."""

    exported: ExportedProgram
    batch: int | None
    """None: any number."""
    names: tuple[str, ...]
    """What its inputs are called."""


def as_program(model: nn.Module, example: Tree, objective: Objective, *, batch: int | None = None) -> Program:
    """The graph of a model in evaluation mode; for batches of any size unless `batch` says one.

    A model that only runs with the batch it was traced with is traced with one sample.
    """
    names = tuple(example) if isinstance(example, dict) else ()
    wrapped = Answer(model, objective.output, names).eval()
    called = names or tuple(f"input_{place}" for place in range(len(leaves(example))))
    failures: list[str] = []
    for size in (batch,) if batch else (None, 1):
        try:
            given = leaves(_resized(example, size or EXAMPLE_SAMPLES))
            return Program(_export(wrapped, tuple(given), dynamic=size is None), size, called)
        except Exception as error:  # whatever PyTorch finds in a user's model
            failures.append(one_line(error))
    raise PlanError(f"torch.export cannot make a program of a {type(model).__name__}: {failures[-1]}")


def _export(model: nn.Module, given: tuple[Tensor, ...], *, dynamic: bool) -> ExportedProgram:
    rows = {0: Dim("batch", min=1)}
    shapes = {"inputs": tuple(rows for _ in given)} if dynamic else None
    with torch.no_grad(), settled_statistics(model), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(model, given, dynamic_shapes=shapes, strict=False)


def _resized(example: Tree, samples: int) -> Tree:
    """The first so many samples of the example, which is repeated where it has fewer."""
    return mapped(lambda t: torch.cat([t] * (1 + samples // len(t)))[:samples], example)
