"""What makes a round of clients in slots fast: old and new ways of one thing, turn by turn in one process.

    python benchmarks/slots.py norms [--device cuda] [--method heterofl] [--rounds 200] [--turns 3]
    python benchmarks/slots.py sizes

`norms`: batch norm and ReLU in one operation, or apart. `sizes`: clients with unequally many samples, whose last
batches have a dozen sizes, with 16 captured steps for each slot, or with 3. Three seeds of recipe benchmark/cifar10
(five sizes of devices, PreResNet18, batch 128), packed, on random images. Milliseconds are for a round of one run, the
median of the second half of the rounds: sizes come again and are captured for a hundred rounds. Seconds are for all of
a turn, with what is captured and compiled.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from unittest.mock import patch

import torch
from lanes import Random, measure

from fedwidth.engines.slots import slot
from fedwidth.models import preresnet
from fedwidth.run.lockstep import lane

UNEQUAL = ["data.partition_options={per_client=20}", "data.validation=0.1"]
"""Of 450 samples of each of 100 classes every client gets 22 or 23 of 20."""


def ways(what: str) -> dict[str, Callable[[], object]]:
    """Two ways to do a thing, each as a context."""
    if what == "norms":
        return {
            "in one operation": lambda: patch.object(preresnet, "has_norm_relu", preresnet.has_norm_relu),
            "apart": lambda: patch.object(preresnet, "has_norm_relu", lambda _: False),
        }
    return {
        f"{graphs} captured steps": lambda graphs=graphs: patch.object(slot, "MAX_GRAPHS", graphs) for graphs in (16, 3)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["norms", "sizes"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--method", default="heterofl")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--set", action="append", default=[], help="a setting of all runs, e.g. training.steps=2")
    arguments = parser.parse_args()
    unequal = arguments.what == "sizes"
    if unequal:
        arguments.set = UNEQUAL + arguments.set
    cache = Random(arguments.samples, 100 if unequal else 10)
    found: dict[str, list[float]] = {}
    ends: dict[str, list[torch.Tensor]] = {}
    for turn in range(arguments.turns):
        for name, way in ways(arguments.what).items():
            began = time.perf_counter()
            with way():
                took, ends[name] = measure(arguments.method, lane.MAX_LANES, arguments, cache, settled=1 / 2)
            found.setdefault(name, []).append(took)
            print(f"turn {turn + 1}, {name}: {took:.2f} ms a round, {time.perf_counter() - began:.1f} s", flush=True)
    new, old = found.values()
    ratios = [one / other for one, other in zip(new, old, strict=True)]
    gap = max((one - other).abs().max().item() for one, other in zip(*ends.values(), strict=True))
    print(
        f"{' / '.join(found)}: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        f" of the time; largest difference of weights {gap:.1e}"
    )


if __name__ == "__main__":
    main()
