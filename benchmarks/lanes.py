"""Runs packed in slots: in lanes that take turns beside all in one lane, and with other numbers of hardware queues.

    python benchmarks/lanes.py [--device cuda] [--methods fedrolex fedecover] [--rounds 40] [--queues 8 32] [--profile]

Three seeds of rows of recipe benchmark/cifar10 (five sizes of devices, PreResNet18, batch 128), on random images of
CIFAR-10's shape. Every number of queues (CUDA_DEVICE_MAX_CONNECTIONS, which CUDA reads when it starts) has a process of
its own, in which lanes take turns. Milliseconds are for a round of one run, the median without the first quarter of
the rounds, in which steps are captured. With --profile the functions follow in which the first thread spends its time
while there are lanes: what is left for the device to wait for.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import os
import pstats
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise

import torch

from fedwidth.config.read import read_settings
from fedwidth.data import Data, Transform, from_tensors
from fedwidth.run.cache import Cache
from fedwidth.run.lockstep import lane, run_in_lockstep

SEEDS = (1, 2, 3)
QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"


def images(samples: int, classes: int = 10) -> Data:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (samples, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.arange(samples) % classes
    transform = Transform((0.49, 0.48, 0.45), (0.25, 0.24, 0.26), scale=255)
    train, test = slice(samples * 5 // 6), slice(samples * 5 // 6, None)
    return from_tensors(
        pixels[train], labels[train], pixels[test], labels[test], kind="images", transform=transform, name="random"
    )


class Random(Cache):
    """A cache with random images in it."""

    def __init__(self, samples: int, classes: int = 10) -> None:
        super().__init__()
        self._images = images(samples, classes)

    def data(self, settings) -> Data:
        """The images."""
        del settings
        return self._images


def measure(
    method: str, lanes: int, arguments: argparse.Namespace, cache: Cache, *, settled: float = 1 / 4
) -> tuple[float, list[torch.Tensor]]:
    """Milliseconds a round and run with so many lanes, the median behind a share of the rounds, and the last states."""
    changes = [f"rounds={arguments.rounds}", f"device={arguments.device}", "engine=cuda", "evaluation.every=100000"]
    changes += ["evaluation.also=[]", "evaluation.capacities=[]", "evaluation.capacities_every=0", *arguments.set]
    if arguments.device.startswith("cuda"):
        changes.append("precision=bf16")
    settings = read_settings("benchmark/cifar10", changes, only=f"{method}/five-sizes").runs[0].settings
    experiments = [cache.experiment(replace(settings, seed=seed)) for seed in SEEDS]
    laps = [time.perf_counter()]

    def after(number: int, _: dict) -> None:
        if number == len(SEEDS) - 1:
            laps.append(time.perf_counter())

    before, lane.MAX_LANES = lane.MAX_LANES, lanes
    try:
        results = run_in_lockstep(experiments, on_round=after)
    finally:
        lane.MAX_LANES = before
    each = [later - earlier for earlier, later in pairwise(laps)][int(settled * arguments.rounds) :]
    states = [torch.cat([t.double().flatten().cpu() for t in one.server.state.values()]) for one in results]
    return 1000 * statistics.median(each) / len(SEEDS), states


def child(arguments: argparse.Namespace) -> None:
    """All methods with lanes and in one lane, turn by turn; one line of JSON for each."""
    cache = Random(arguments.samples)
    for method in arguments.methods:
        found: dict[int, list[float]] = {lane.MAX_LANES: [], 1: []}
        ends = {}
        for _ in range(arguments.turns):
            for lanes, times in found.items():
                took, ends[lanes] = measure(method, lanes, arguments, cache)
                times.append(took)
        same = all(torch.equal(*both) for both in zip(*ends.values(), strict=True))
        print(json.dumps({"method": method, "ms": found, "same": same}), flush=True)
        if arguments.profile:
            profile = cProfile.Profile()
            profile.runcall(measure, method, lane.MAX_LANES, arguments, cache)
            text = io.StringIO()
            pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(25)
            print(text.getvalue(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--methods", nargs="+", default=["fedrolex", "fedecover"])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--queues", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--set", action="append", default=[], help="a setting of all runs, e.g. training.steps=2")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments)
        return
    for queues in arguments.queues:
        command = [sys.executable, __file__, "--child", *sys.argv[1:]]
        done = subprocess.run(command, env=os.environ | {QUEUES: str(queues)}, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        for line in done.stdout.splitlines():
            if not line.startswith("{"):
                print(line)
                continue
            row = json.loads(line)
            several, one = (statistics.median(times) for times in row["ms"].values())
            same = "the same bits" if row["same"] else "OTHER BITS"
            print(
                f"{row['method']}, {queues} queues: {several:.1f} ms a round in lanes, {one:.1f} in one lane,"
                f" ratio {several / one:.3f}; {same}",
                flush=True,
            )


if __name__ == "__main__":
    main()
