"""The aggregator that docs/other-frameworks.md shows for NVFlare, run as the page has it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip(
    "nvflare", reason="nvflare is not installed: pip install nvflare (it wants an environment of its own)"
)

from nvflare.app_common.abstract.fl_model import FLModel

import fedwidth

PAGE = Path(__file__).resolve().parents[2] / "docs" / "other-frameworks.md"


def test_two_sites_of_two_widths_are_averaged_element_by_element():
    source = re.search(
        r'^```python title="narrow_aggregator.py"\n(.*?)^```$', PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    namespace: dict = {}
    exec(compile(source[1], "narrow_aggregator.py", "exec"), namespace)
    model = nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 1, bias=False))
    plan, method = fedwidth.trace(model, torch.zeros(1, 1)), fedwidth.method("heterofl")
    tasks = method.assign(plan, cohort=[(0, 1.0), (1, 0.5)], round=0)
    indexes = {f"site-{task.client}": task.index for task in tasks}
    aggregator = namespace["NarrowAggregator"](fedwidth.state_of(model), plan, indexes)
    for site, value, weight in (("site-0", 5.0, 3), ("site-1", 1.0, 1)):
        sub = {name: torch.full(shape, value).numpy() for name, shape in indexes[site].shapes.items()}
        aggregator.accept_model(FLModel(params=sub, meta={"client_name": site, "num_examples": weight}))
    found = aggregator.aggregate_model().params
    assert found["0.weight"].flatten().tolist() == [4.0, 5.0]  # (3 * 5 + 1 * 1) / 4, and 5 alone
    aggregator.reset_stats()
    bad = {name: torch.full(shape, float("nan")).numpy() for name, shape in indexes["site-1"].shapes.items()}
    with pytest.raises(fedwidth.FedwidthError, match="client site-1 sent a value in '0.weight' that is not finite"):
        aggregator.accept_model(FLModel(params=bad, meta={"client_name": "site-1", "num_examples": 1}))
    assert not aggregator.updates
