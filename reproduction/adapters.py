"""The section about adapters: ranks that devices can afford, from the runs that `benchmarks/adapters.py` recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from fedwidth.analysis.wording import over_seeds

FILE = "adapters.json"
LABELS = {
    "units": "FedRolex windows, Eq. 10 on units",
    "svd": "FedRolex windows, mean decomposed (`svd`)",
    "residual": "FedRolex windows, residual into the base",
    "stack": "FedRolex windows, stacked into the base",
    "a-frozen": "FedRolex windows, A frozen (`ffalora`)",
    "fedstack": "FedStack windows, Eq. 10 on units",
    "hetlora": "HetLoRA, as published",
    "flexlora": "FlexLoRA, as published",
    "flora": "FLoRA, as published",
    "only-full-rank": "*only full-rank devices* (FedIT)",
    "rank-1-for-all": "*rank 1 for all* (FedIT)",
}
EARLY = 5
"""The round whose effective rank is shown beside the last one's."""
ABOUT = (
    "A small language model of Ubuntu IRC, adapted to Shakespeare's roles by devices of ranks 16, 8, 4, 2 and 1, beside"
    " what the full-rank devices reach alone and what all reach at rank 1. How it was measured, and what it says:"
    " [Adapters](adapters.md#measured)."
)


def adapter_texts(results: Path) -> Iterator[str]:
    """The paragraphs of the section; none where nothing has been recorded."""
    if not (results / FILE).exists():
        return
    yield "## Adapters"
    yield ABOUT
    found = json.loads((results / FILE).read_text(encoding="utf-8"))
    yield rules_table(found)
    if found["memory"]:
        yield "What a client of each rank needs:"
        yield memory_table(found)


def rules_table(found: dict[str, Any]) -> str:
    """What each rule reaches: loss, aggregation error, effective rank, bytes."""
    lines = [
        "| | loss (nats a word) | aggregation error | effective rank, round 5 → 20 | MiB up | MiB down | seeds |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, label in LABELS.items():
        runs = [run for run in found["runs"] if run["run"] == name]
        if not runs:
            continue
        errors = [fmean(e for e in run["error"] if e is not None) for run in runs]
        ranks = [[rank for rank in run["effective_rank"] if rank is not None] for run in runs]  # none before a change
        early, last = (fmean(own[place] for own in ranks) for place in (min(EARLY, *map(len, ranks)) - 1, -1))
        up, down = (fmean(run[key] for run in runs) / 2**20 for key in ("bytes_up", "bytes_down"))
        lines.append(
            f"| {label} | {over_seeds([run['loss'][-1] for run in runs], 3)} | {fmean(errors):.1e} |"
            f" {early:.1f} → {last:.1f} | {up:.1f} | {down:.1f} | {len(runs)} |"
        )
    return "\n".join([*lines, f"| before adapting | {found['base']['loss_roles']:.3f} | | | | | |"])


def memory_table(found: dict[str, Any]) -> str:
    """What a client of each rank holds and sends."""
    lines = [
        "| rank | trained | sent once | kept for the backward pass | reckoned in all | at its peak |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for rank, facts in found["memory"].items():
        sizes = (facts[key] for key in ("trained_mib", "frozen_mib", "activations_mib", "memory_mib", "peak_mib"))
        lines.append(f"| {rank} | " + " | ".join(f"{size:.2f} MiB" for size in sizes) + " |")
    return "\n".join(lines)
