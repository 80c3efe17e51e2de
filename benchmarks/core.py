"""Extract and aggregate, side by side with a straightforward per-client loop.

PreResNet18 (11.17 M parameters), 10 clients, two of each width, one CPU thread. Prints a table and writes JSON with
`--out`. The ratios are the result; milliseconds depend on the machine.

    python benchmarks/core.py [--repeats 9] [--out core.json]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import fedwidth
from fedwidth.core.cohort import sum_cohorts
from fedwidth.models import build, example_inputs

WIDTHS = (1, 1, 1 / 2, 1 / 2, 1 / 4, 1 / 4, 1 / 8, 1 / 8, 1 / 16, 1 / 16)


def plain_extract(state: dict[str, Tensor], index: fedwidth.Index) -> dict[str, Tensor]:
    """One advanced-index gather per tensor and client, as published code does."""
    return {n: t[torch.meshgrid(*index[n], indexing="ij")] if t.dim() else t.clone() for n, t in state.items()}


def plain_merge(state: dict[str, Tensor], updates: list[tuple[dict[str, Tensor], fedwidth.Index]]) -> dict[str, Tensor]:
    """Sums and counts of full size, one scatter per tensor and client, then one division: Eq. 10 as written."""
    merged = {}
    for name, old in state.items():
        if not old.is_floating_point():
            merged[name] = old.clone()
            continue
        total, count = torch.zeros_like(old), torch.zeros_like(old)
        for sub, index in updates:
            grid = torch.meshgrid(*index[name], indexing="ij") if old.dim() else ()
            total[grid] += sub[name]
            count[grid] += 1
        held = count > 0
        merged[name] = old.clone()
        merged[name][held] = total[held] / count[held]
    return merged


def median_ms(work: Callable[[], object], repeats: int) -> float:
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model, inputs = build("preresnet18"), example_inputs("preresnet18")
    plan = fedwidth.trace(model, inputs)
    record: dict[str, object] = {
        "torch": torch.__version__,
        "machine": platform.machine(),
        "trace_ms": median_ms(lambda: fedwidth.trace(model, inputs), arguments.repeats),
    }
    state = fedwidth.state_of(model)
    rows = []
    for name in ("heterofl", "fedrolex", "feddropout", "fedbrb"):
        method = fedwidth.method(name, rounding="ceil")
        cohort = list(enumerate(WIDTHS))
        tasks = method.assign(plan, cohort, round=100)
        updates = [({n: t + 1 for n, t in plain_extract(state, t.index).items()}, t.index) for t in tasks]
        weighted = [(sub, index, 1.0) for sub, index in updates]
        expected, found = plain_merge(state, updates), fedwidth.merge(state, weighted, plan)
        assert all(
            torch.allclose(expected[n], found[n], atol=1e-4) for n in expected if expected[n].is_floating_point()
        )
        ours = {
            "assign": median_ms(lambda: method.assign(plan, cohort, round=100), arguments.repeats),  # noqa: B023
            "extract": median_ms(lambda: [fedwidth.extract(state, plan, t.index) for t in tasks], arguments.repeats),  # noqa: B023
            "aggregate": median_ms(
                lambda: method.aggregate(state, sum_cohorts(weighted, plan, copy=False), plan),  # noqa: B023
                arguments.repeats,
            ),
        }
        plain = {
            "extract": median_ms(lambda: [plain_extract(state, t.index) for t in tasks], 3),  # noqa: B023
            "aggregate": median_ms(lambda: plain_merge(state, updates), 3),  # noqa: B023
        }
        rows.append({"method": name, "ours_ms": ours, "plain_ms": plain})
        print(
            f"{name:12s} extract {ours['extract']:6.1f} ms ({plain['extract'] / ours['extract']:4.1f}x the plain loop)"
            f"   aggregate {ours['aggregate']:6.1f} ms ({plain['aggregate'] / ours['aggregate']:4.1f}x)"
            f"   choose {ours['assign']:5.1f} ms"
        )
    record["methods"] = rows
    print(f"trace preresnet18: {record['trace_ms']:.0f} ms")
    if arguments.out:
        arguments.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
