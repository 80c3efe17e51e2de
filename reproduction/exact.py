"""The section about what needs no training: what sub-models cost, and which weights a method reaches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from fedwidth.analysis.coverage import measure_coverage
from fedwidth.core.cost import CAPACITIES, average, cost
from fedwidth.files import write_whole
from fedwidth.methods import method
from fedwidth.models import build, example_inputs
from fedwidth.plan import trace
from reproduction.markdown import make_table, percent

MODEL, ROUNDS = "preresnet18", 512
COVERAGE = "coverage.json"
METHODS = ("heterofl", "fedrolex", "feddropout", "fedbrb")
SHARES = tuple(Fraction(1, part) for part in (2, 4, 8, 16))
WIDEST = "512x512"
"""The size of the tensors that FedBRB's Figure 3d is about."""

TABLE_7 = {
    "parameters per client (million)": ("11.1722", "2.9781232", "0.04451"),
    "operations per client (million)": ("557.656", "149.048384", "2.41318"),
    "model size per client (MB)": ("42.62", "11.36", "0.17"),
}
"""FedRolex Table 7 as printed: all clients at full width, five widths in equal parts, all at 1/16."""


@cache
def cost_rows() -> list[tuple[str, str, str, float]]:
    """The rows of FedRolex Table 7: what is counted, for which clients, the printed number, ours."""
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
    """The shares of weights that methods reach, as kept in coverage.json; measured now where there is no such file."""
    path = results / COVERAGE
    if not path.exists():
        results.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(measure(), indent=2) + "\n")
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return kept


def exact_texts(results: Path) -> Iterator[str]:
    """The paragraphs and tables of the section."""
    yield "FedRolex Table 7: PreResNet18, rounding as published (`fedwidth cost preresnet18 --rounding ceil`)."
    rows = [
        [what, whose, printed, f"{ours:.7g}", "yes" if agrees(printed, ours) else "no"]
        for what, whose, printed, ours in cost_rows()
    ]
    yield make_table(["per client", "clients", "paper", "ours", "equal"], rows, left=2)
    yield "The paper's averages are means of rounded numbers, hence their last digits."
    found = coverage(results)
    yield (
        f"Share of PreResNet18's convolution weights that are trained at least once in {found['rounds']} rounds, every"
        " client having the capacity of the column (`fedwidth coverage preresnet18 --method M --capacity C`), and in"
        f" brackets that of its {WIDEST} tensors, of which FedBRB's Fig. 3d shows one at 1/4:"
    )
    columns = [str(share) for share in SHARES]
    rows = [
        [name, *(f"{percent(found['convolutions'][name][c])} ({percent(found[WIDEST][name][c])})" for c in columns)]
        for name in METHODS
    ]
    yield make_table(["method, one client a round", *columns], rows)
    yield (
        "FedRolex covers units evenly, but input and output windows roll in lock-step: at 1/4 a weight between units i"
        " and j of 512 is trained if they are less than 128 apart around the circle, 255/512 of all. This is FedBRB's"
        " criticism, and it is right."
    )
