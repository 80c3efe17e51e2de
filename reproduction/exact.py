"""Published figures that need no training: what sub-models cost, and which weights a method reaches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from fedwidth.analysis.coverage import measure_coverage
from fedwidth.core.cost import CAPACITIES, average, cost
from fedwidth.methods import method
from fedwidth.models import build, example_inputs
from fedwidth.plan import trace
from fedwidth.run.checkpoint import write_whole

MODEL, ROUNDS = "preresnet18", 512
COVERAGE = "coverage.json"
METHODS = ("heterofl", "fedrolex", "feddropout", "fedbrb")
SHARES = tuple(Fraction(1, part) for part in (2, 4, 8, 16))
WIDEST = "512x512"
"""The tensors FedBRB's Fig. 3d is about."""

TABLE_7 = {
    "parameters per client (million)": ("11.1722", "2.9781232", "0.04451"),
    "operations per client (million)": ("557.656", "149.048384", "2.41318"),
    "model size per client (MB)": ("42.62", "11.36", "0.17"),
}
"""FedRolex Table 7 as printed: all clients at full width, five widths in equal parts, all at 1/16."""


@cache
def cost_rows() -> list[tuple[str, str, str, float]]:
    """FedRolex Table 7: (what, whose, published, ours)."""
    model, inputs = build(MODEL), example_inputs(MODEL)
    costs = cost(model, trace(model, inputs), inputs, CAPACITIES, rounding="ceil")
    columns = {"all at full width": costs[0], "five widths": average(costs), "all at 1/16": costs[-1]}
    rows = []
    for what, published in TABLE_7.items():
        for (whose, found), printed in zip(columns.items(), published, strict=True):
            ours = {
                "parameters": found.parameters / 1e6,
                "operations": found.operations / 1e6,
                "model": found.bytes / 2**20,
            }
            rows.append((what, whose, printed, ours[what.split()[0]]))
    return rows


def agrees(published: str, ours: float) -> bool:
    """Whether our number is the published one, to the fifth digit or all that are printed.

    The averages of the paper are means of rounded numbers, so that their last digits say nothing.

    >>> agrees("42.62", 42.6184), agrees("2.9781232", 2.97811), agrees("0.17", 0.18)
    (True, True, False)
    """
    digits = len(published.split(".")[1])
    tolerance: float = max(0.5 / 10**digits, 1e-5 * ours)
    return abs(float(published) - ours) <= tolerance


def measure(methods: Sequence[str] = METHODS, capacities: Sequence[Fraction] = SHARES) -> dict[str, Any]:
    """The share of convolution weights that clients of one capacity reach in 512 rounds, by method and capacity."""
    plan = trace(build(MODEL), example_inputs(MODEL))
    found: dict[str, Any] = {"model": MODEL, "rounds": ROUNDS, "convolutions": {}, WIDEST: {}}
    for name in methods:
        for capacity in capacities:
            measured = measure_coverage(plan, method(name), [float(capacity)], ROUNDS)
            wide = [tensor.share for tensor in measured.tensors if tensor.shape[:2] == (512, 512)]
            found["convolutions"].setdefault(name, {})[str(capacity)] = round(measured.share("convolutions"), 6)
            found[WIDEST].setdefault(name, {})[str(capacity)] = round(sum(wide) / len(wide), 6)
    return found


def coverage(results: Path) -> dict[str, Any]:
    """What was measured once and kept beside the results, or measured now."""
    path = results / COVERAGE
    if not path.exists():
        results.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(measure(), indent=2) + "\n")
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return kept
