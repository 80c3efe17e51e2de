"""Models of the zoo at half width, as if they had been taken out of a run."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import fedwidth
from fedwidth.data import Data, Split
from fedwidth.data.stand_in import facts_of
from fedwidth.export.load import Taken
from fedwidth.objectives import CLASSIFICATION
from fedwidth.plan import trace
from fedwidth.settings import Settings
from zoo.case import build, run
from zoo.cases import ZOO

SAMPLES = 64


def taken_of(name: str, folder: Any) -> tuple[Taken, Any]:
    """The half-width model of a case with random weights, and inputs to compare answers with."""
    case = ZOO[name]
    model, example = build(case.full).float(), tree_map(_single, case.inputs())
    plan = trace(model, example, output=case.output)
    index = fedwidth.method("heterofl").select(plan, capacity=0.5)
    small = fedwidth.narrow(model, plan, index).eval()
    targets = torch.zeros(2, dtype=torch.long)
    split = Split(example, targets)
    data = Data(name, split, split, 10)
    taken = Taken(small, Settings(), 0.5, index.counts, data, True, facts_of(data), CLASSIFICATION, plan, 1, folder)
    return taken, tree_map(partial(_more, torch.Generator().manual_seed(3)), example)


def answer_of(model: nn.Module, inputs: Any) -> Tensor:
    """What the model answers."""
    with torch.no_grad():
        return run(model, inputs)


def _single(x: Any) -> Any:
    return x.float() if isinstance(x, Tensor) and x.is_floating_point() else x


def _more(generator: torch.Generator, x: Any) -> Any:
    """So many samples more; words that occur in the example, in another order."""
    if not isinstance(x, Tensor) or not x.dim():
        return x
    if x.is_floating_point():
        return torch.randn(SAMPLES, *x.shape[1:], generator=generator)
    if x.dtype == torch.bool or int(x.max()) <= 1:
        return x[:1].expand(SAMPLES, *x.shape[1:]).contiguous()
    places = torch.randint(0, x.numel(), (SAMPLES, *x.shape[1:]), generator=generator)
    return x.flatten()[places]
