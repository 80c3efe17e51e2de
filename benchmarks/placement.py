"""How busy Ray's workers are over a round of mixed widths: placed by measured cost, and in the order of tasks.

    python benchmarks/placement.py [--out placement.json] [--rounds 15] [--workers 2]

Both placements take turns on the same workers and the same tasks, round by round, after the costs have been learnt.
A worker's share is the seconds it trained by the seconds of the whole round, so Ray's own time counts as idle. "At
best" is the share of the worst worker if the chunks' measured seconds were divided best. Needs the `ray` extra.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch
from cluster import changed
from scaling import experiment

from fedwidth.core.submodel import state_of
from fedwidth.engines.ray.chunks import Chunk
from fedwidth.engines.ray.engine import RayEngine
from fedwidth.engines.ray.scheduling import Costs, Seconds, WorkerHandle, schedule
from fedwidth.experiment import Experiment

CAPACITIES = "1:1 1/2:1 1/4:1 1/8:1 1/16:1"
WORKLOADS = {
    "CNN 64, 128": ({"name": "cnn", "options": {"widths": [64, 128]}}, [3, 32, 32], 200),
    "CNN 16, 32": ({"name": "cnn", "options": {"widths": [16, 32]}}, [3, 32, 32], 50),
    "MLP 784-256-10": ({"name": "mlp", "options": {"hidden": [256]}}, [1, 28, 28], 60),
}
CASES = [
    ("CNN 64, 128", "serial", 12),
    ("CNN 64, 128", "serial", 20),
    ("CNN 16, 32", "serial", 20),
    ("MLP 784-256-10", "vectorised", 100),
]
LEARN = 4


class Noted(Costs):
    """Costs that keep what every chunk took."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def learn(self, samples: Mapping[float, int], seconds: float) -> None:
        """Keep it too."""
        self.seconds.append(seconds)
        super().learn(samples, seconds)


def in_turn(workers: Sequence[WorkerHandle], waiting: list[Chunk], _: Seconds) -> Iterator[tuple[WorkerHandle, Chunk]]:
    """The naive placement: chunks in the order of tasks, one worker after the other."""
    for chunk in sorted(waiting, key=lambda chunk: chunk.tasks):
        yield workers[chunk.number % len(workers)], chunk
    waiting.clear()


PLACEMENTS = {"by cost": schedule, "in turn": in_turn}


def measure(label: str, inner: str, clients: int, *, workers: int, rounds: int) -> dict:
    """Means over rounds: the worst worker's share, all workers' share, the seconds of a round; and the worst round."""
    model, shape, samples = WORKLOADS[label]
    wanted = {"rounds": 1000, "engine": "serial", "model": model, "capacities": CAPACITIES}
    wanted |= {"clients": 200, "per_round": clients, "shape": shape, "samples": samples}
    run = changed(experiment(wanted), ("engine=ray", f"ray.engine={inner}", f"workers={workers}"))
    engine = RayEngine(run.trainer)
    costs = engine.costs = Noted()
    found: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in PLACEMENTS}
    try:
        state = state_of(run.model)
        while any(worker.info is None or not worker.warm for worker in engine.workers):
            train(run, engine, state, 0)
        for round in range(LEARN):
            train(run, engine, state, round)
        for round in range(LEARN, LEARN + rounds):
            for name, placement in PLACEMENTS.items():
                engine.schedule = placement
                costs.seconds = []
                took = train(run, engine, state, round)
                shares = [worker.busy / took for worker in engine.workers]
                best = best_share(costs.seconds, workers)
                found[name].append((min(shares), statistics.mean(shares), took, best))
    finally:
        engine.close()
    record: dict = {"model": label, "inside": inner, "clients": clients, "workers": workers, "rounds": rounds}
    for name, lines in found.items():
        worst, every, seconds, best = (statistics.mean(column) for column in zip(*lines, strict=True))
        record[name] = {"worst": worst, "mean": every, "ms": 1000 * seconds, "worst_at_best": best}
        record[name]["worst_round"] = min(line[0] for line in lines)
    ratios = [naive[2] / own[2] for own, naive in zip(found["by cost"], found["in turn"], strict=True)]
    return record | {"times_faster": statistics.mean(ratios)}


def train(run: Experiment, engine: RayEngine, state: dict, round: int) -> float:
    """Seconds of a round."""
    tasks = run.method.assign(run.plan, run.cohort(round), round, None, 1)
    began = time.perf_counter()
    engine.run(state, tasks, round)
    return time.perf_counter() - began


def best_share(seconds: Sequence[float], workers: int) -> float:
    """The worst worker's share where chunks are divided best; with more than two workers, a bound on it."""
    whole = sum(seconds)
    if workers != 2:
        return whole / workers / max(whole / workers, *seconds)
    sums = {0}
    steps = [round(each * 1e4) for each in seconds]
    for step in steps:
        sums |= {one + step for one in sums}
    longer = min(max(one, sum(steps) - one) for one in sums)
    return (sum(steps) - longer) / longer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    records = []
    for label, inner, clients in CASES:
        record = measure(label, inner, clients, workers=arguments.workers, rounds=arguments.rounds)
        records.append(record)
        print(f"{label}, {clients} clients, {inner} inside: by cost {record['times_faster']:.2f} times faster")
        for name in PLACEMENTS:
            own = record[name]
            print(
                f"  {name:10}{own['ms']:8.0f} ms  worst worker busy {own['worst']:4.0%} (at best"
                f" {own['worst_at_best']:4.0%}; in the worst round {own['worst_round']:4.0%}), all {own['mean']:4.0%}",
                flush=True,
            )
    if arguments.out:
        about = {
            "date": datetime.now(UTC).date().isoformat(),
            "torch": torch.__version__,
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
        }
        arguments.out.write_text(json.dumps(about | {"placement": records}, indent=2) + "\n")


if __name__ == "__main__":
    main()
