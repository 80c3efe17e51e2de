"""A model as a program: its graph, traced with `torch.export`, from which the files for other runtimes are made."""

from __future__ import annotations

import inspect
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
from fedwidth.objectives.output import arguments

EXAMPLE_SAMPLES = 3
"""As many samples as no dimension of a usual model has, so that none is taken for the batch."""


class Answer(nn.Module):
    """A model that returns what counts of its output, and takes its inputs in order, those with names too."""

    def __init__(self, model: nn.Module, output: Callable[[Any], Any], names: Sequence[str] = ()) -> None:
        super().__init__()
        self.model, self.output, self.names = model, output, tuple(names)

    def forward(self, *inputs: Tensor) -> Any:
        """What counts of the model's answer."""
        if self.names:
            return self.output(self.model(**dict(zip(self.names, inputs, strict=True))))
        return self.output(self.model(*inputs))


class NamedAnswer(nn.Module):
    """A model that returns what counts of its output, and takes its inputs by their names."""

    def __init__(self, model: nn.Module, output: Callable[[Any], Any], names: Sequence[str]) -> None:
        super().__init__()
        self.model = model

        def forward(**named: Tensor) -> Any:
            return output(model(**named))

        # With `**named` for its signature, torch.export cannot let the number of samples be any.
        parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
        forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        self.forward = forward


@dataclass(frozen=True)
class Program:
    """An exported graph, and how many samples it takes at a time."""

    exported: ExportedProgram
    batch: int | None
    """None: any number."""
    names: tuple[str, ...]
    """What its inputs are called."""
    by_name: bool = False
    """Whether they are given by these names, and not in their order."""


def as_program(
    model: nn.Module, example: Tree, objective: Objective, *, batch: int | None = None, by_name: bool = False
) -> Program:
    """The graph of a model in evaluation mode; for batches of any size unless `batch` says one.

    A model that only runs with the batch it was traced with is traced with one sample. Inputs that are a dictionary
    are taken in order, which all runtimes can, or `by_name`, as the model takes them.
    """
    names = tuple(example) if isinstance(example, dict) else ()
    by_name = by_name and bool(names)
    wrapped = (NamedAnswer if by_name else Answer)(model, objective.output, names).eval()
    called = names or tuple(f"input_{place}" for place in range(len(leaves(example))))
    failures: list[str] = []
    for size in (batch,) if batch else (None, 1):
        try:
            given = _resized(example, size or EXAMPLE_SAMPLES)
            exported = _export(wrapped, given if by_name else tuple(leaves(given)), dynamic=size is None)
            return Program(exported, size, called, by_name)
        except Exception as error:  # whatever PyTorch finds in a user's model
            failures.append(one_line(error))
    raise PlanError(f"torch.export cannot make a program of a {type(model).__name__}: {failures[-1]}")


def _export(model: nn.Module, given: Tree, *, dynamic: bool) -> ExportedProgram:
    """The graph for inputs that are given in order, or by name."""
    rows = {0: Dim("batch", min=1)}
    inputs, named = arguments(given)
    shapes = dict.fromkeys(named, rows) if named else {"inputs": tuple(rows for _ in inputs)}
    with torch.no_grad(), settled_statistics(model), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(model, inputs, named, dynamic_shapes=shapes if dynamic else None, strict=False)


def _resized(example: Tree, samples: int) -> Tree:
    """The first so many samples of the example, which is repeated where it has fewer."""
    return mapped(lambda t: torch.cat([t] * (1 + samples // len(t)))[:samples], example)
