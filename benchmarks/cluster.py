"""What Ray adds to a round and to a client, and a round of 10,000 out of a million registered clients.

    python benchmarks/cluster.py [--out cluster.json] [--only overhead,million,sizes] [--repeats 15]

Overhead: all engines live side by side in one process and take turns, round by round, on the same tasks. Million: each
line in a process of its own. Sizes: bytes of each sub-model, counted. Needs the `ray` extra for the first two.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import torch
from scaling import experiment, forget_peak, resident

from fedwidth.core.cohort import CohortSum
from fedwidth.core.cost import cost
from fedwidth.core.submodel import extract, state_of
from fedwidth.core.updates import Update
from fedwidth.engines import make_engine
from fedwidth.engines.ray.engine import RayEngine
from fedwidth.experiment import Experiment
from fedwidth.methods import method
from fedwidth.models import build
from fedwidth.plan import Plan, trace

CNN = {"name": "cnn", "options": {"widths": [16, 32]}}
MLP = {"name": "mlp", "options": {"hidden": [64]}}
SMALL = {"name": "mlp", "options": {"hidden": [16]}}
KINDS = {
    "serial": (),
    "processes, 2 workers": ("engine=processes", "workers=2"),
    "ray of serial, 1 worker": ("engine=ray", "ray.engine=serial", "workers=1"),
    "ray of serial, 2 workers": ("engine=ray", "ray.engine=serial", "workers=2"),
    "vectorised": ("engine=vectorised",),
    "ray of vectorised, 2 workers": ("engine=ray", "ray.engine=vectorised", "workers=2"),
}
CAPACITIES = (1.0, 0.5, 0.25, 0.125, 0.0625)


def overhead(repeats: int) -> list[dict]:
    """Milliseconds a round of every engine, for several models and numbers of clients."""
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address="local", include_dashboard=False, num_cpus=8, logging_level="WARNING")
    found = []
    workloads = [
        ("MLP 784-64-10", MLP, [1, 28, 28], 10, (1, 10, 50)),
        ("CNN 16, 32", CNN, [3, 32, 32], 50, (10,)),
    ]
    for label, model, shape, samples, numbers in workloads:
        for number in numbers:
            times = take_turns(model, shape, samples, number, repeats)
            for kind, seconds in times.items():
                ratios = [own / base for own, base in zip(seconds, times["serial"], strict=True)]
                record = {
                    "model": label,
                    "clients": number,
                    "engine": kind,
                    "ms": 1000 * statistics.median(seconds),
                    "times_serial": statistics.median(ratios),
                }
                found.append(record)
                print(f"{label:15}{number:4} clients  {kind:30}{record['ms']:9.1f} ms{record['times_serial']:7.2f} ×")
    ray.shutdown()
    return found


def take_turns(model: dict, shape: list[int], samples: int, number: int, repeats: int) -> dict[str, list[float]]:
    wanted = {
        "rounds": 1000,
        "engine": "serial",
        "model": model,
        "capacities": "1:1 1/2:1 1/4:1",
        "clients": 200,
        "per_round": number,
        "shape": shape,
        "samples": samples,
    }
    run = experiment(wanted)
    engines = {kind: make_engine(changed(run, changes).trainer) for kind, changes in KINDS.items()}
    state = state_of(run.model)
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for round in range(repeats + 3):  # the first three warm up
        tasks = run.method.assign(run.plan, run.cohort(round), round, None, 1)
        for kind, engine in engines.items():
            began = time.perf_counter()
            engine.run(state, tasks, round)
            if round >= 3:
                times[kind].append(time.perf_counter() - began)
    for engine in engines.values():
        engine.close()
    return times


def changed(run: Experiment, changes: tuple[str, ...]) -> Experiment:
    """The same model and data with another engine."""
    keys = dict(change.split("=") for change in changes)
    inner = replace(run.settings.ray, engine=keys.get("ray.engine", "auto"))
    settings = replace(
        run.settings, engine=keys.get("engine", "serial"), workers=int(keys.get("workers", 0)), ray=inner
    )
    return Experiment(settings, model=run.model, data=run.data, partition=run.partition)


def million(engine: str) -> dict:
    """In a process of its own: two rounds of 10,000 clients out of a million."""
    began = time.perf_counter()
    wanted = {
        "rounds": 3,
        "engine": engine,
        "workers": 2,
        "model": SMALL,
        "capacities": "1:1 1/2:1 1/4:1",
        "clients": 1_000_000,
        "per_round": 10_000,
        "shape": [8],
        "samples": 2,
    }
    run = experiment(wanted)
    set_up, before = time.perf_counter() - began, resident()
    trainer = make_engine(run.trainer)
    ends = [time.perf_counter()]
    workers: list[float] = []

    def note(_: dict) -> None:
        ends.append(time.perf_counter())
        if isinstance(trainer, RayEngine):
            workers[:] = [resident("VmHWM", worker.info.process) for worker in trainer.workers if worker.info]

    forget_peak()
    run.run(on_round=note, engine=trainer)
    return {
        "engine": engine,
        "inside": trainer.inner if isinstance(trainer, RayEngine) else "",
        "parameters": sum(p.numel() for p in run.model.parameters()),
        "set_up_seconds": set_up,
        "first_round_seconds": ends[1] - ends[0],
        "round_seconds": ends[2] - ends[1],
        "set_up_mb": before,
        "peak_mb": resident("VmHWM"),
        "worker_peak_mb": workers,
    }


def sizes() -> list[dict]:
    """What a client of each capacity sends and receives in a round."""
    found = []
    models = {
        "preresnet18": ({"data_shape": (3, 32, 32), "classes": 10}, torch.zeros(2, 3, 32, 32)),
        "transformer": ({"vocabulary": 10_000}, torch.zeros(2, 20, dtype=torch.long)),
    }
    for name, (facts, example) in models.items():
        model = build(name, seed=0, **facts)
        plan = trace(model, example)
        for each in cost(model, plan, example, CAPACITIES):
            one_way = int(each.bytes + each.buffer_bytes)
            seconds = time_add(model, plan, float(each.capacity))
            found.append(
                {
                    "model": name,
                    "capacity": float(each.capacity),
                    "bytes_one_way": one_way,
                    "add_ms": 1000 * seconds,
                }
            )
            print(f"{name:14}{float(each.capacity):8g}{one_way:14,} bytes each way{1000 * seconds:10.2f} ms to add")
    return found


def time_add(model: torch.nn.Module, plan: Plan, capacity: float) -> float:
    """Seconds the server takes to check one update and add it to its cohort's sum, on one core."""
    index = method("fedrolex").select(plan, capacity=capacity, round=3)
    update = Update(extract(state_of(model), plan, index), index)
    cohort = CohortSum(index)
    times = []
    for _ in range(12):
        began = time.perf_counter()
        cohort.add(update)
        times.append(time.perf_counter() - began)
    return min(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="overhead,million,sizes")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.case:
        print(json.dumps(million(arguments.case)))
        return
    only = arguments.only.split(",")
    record: dict[str, object] = {
        "date": datetime.now(UTC).date().isoformat(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }
    if "overhead" in only:
        record["overhead"] = overhead(arguments.repeats)
    if "million" in only:
        cases = []
        for engine in ("serial", "vectorised", "ray"):
            command = [sys.executable, __file__, "--case", engine]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            cases.append(json.loads(done.stdout.splitlines()[-1]))
            print({key: round(v, 2) if isinstance(v, float) else v for key, v in cases[-1].items()}, flush=True)
        record["million"] = cases
    if "sizes" in only:
        record["sizes"] = sizes()
    if arguments.out:
        arguments.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
