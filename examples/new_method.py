"""A new method in one small file: which units to keep, and a record that names it.

    python examples/new_method.py

Copied to src/fedwidth/methods/ this file is all it takes: `fedwidth methods` lists it, recipes name it, and the
contract tests run over it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedwidth.methods import ROUNDING, Method, Moment, Option, per_group


def units(size: int, kept: int, at: Moment) -> Tensor:
    """Units spread evenly over the layer, all moved on by `step` every round."""
    spread = torch.arange(kept) * size // kept
    return ((spread + at.round * at.options["step"]) % size).sort().values


METHOD = Method(
    name="fedcomb",
    title="Comb",
    paper="an example",
    equation="-",
    choose=per_group(units),
    options={
        "rounding": ROUNDING,
        "step": Option(1, "a whole number from 1 on", lambda v: type(v) is int and v >= 1, "advance a round"),
    },
    shared=lambda _: True,
)


def main() -> None:
    """Show its windows, and how much of a small network it trains compared with FedRolex."""
    import fedwidth
    from fedwidth.analysis.coverage import measure_coverage
    from fedwidth.models import build, example_inputs

    plan = fedwidth.trace(build("mlp"), example_inputs("mlp"))
    comb = METHOD.with_options()
    for round in range(3):
        kept = comb.select(plan, capacity=1 / 4, round=round).units["hidden.3"]
        print(round, "".join("#" if unit in kept else "." for unit in range(32)))
    for method in (comb, fedwidth.method("fedrolex")):
        measured = measure_coverage(plan, method, [1 / 4], rounds=128)
        print(f"{method.title}: {measured.share():.1%} of the weights trained, evenness {measured.evenness:.2f}")


if __name__ == "__main__":
    main()
