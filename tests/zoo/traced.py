"""A case of the zoo with its plan."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from fedwidth.plan.plan import Plan
from fedwidth.plan.trace import trace
from zoo.case import build, doubled
from zoo.cases import PLANNED
from zoo.hugging_face import HUGGING_FACE


def traced(name: str, heads: str = "within") -> tuple[nn.Module, Plan, Any]:
    """The model of a case, its plan, and its example inputs; skips the test where transformers is not installed."""
    if name in HUGGING_FACE:
        pytest.importorskip("transformers")
    case = PLANNED[name]
    model, inputs = build(case.full), doubled(case.inputs())
    return model, trace(model, inputs, heads=heads, output=case.output), inputs
