"""What a round costs against clients a round, model size and registered clients, and memory over a thousand rounds.

    python benchmarks/scaling.py [--out scaling.json] [--only clients,models,registered,rounds]

Each line is measured in a process of its own. "MB set up" is what the process holds before its first round (data and
model included), "MB more" what the rounds add at their peak.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from fedwidth.config.read import read_settings
from fedwidth.data import Data, Partition, Shares, from_tensors
from fedwidth.experiment import Experiment

MLP = {"name": "mlp", "options": {"hidden": [128, 32]}}
SMALL = {"name": "mlp", "options": {"hidden": [16]}}
IMAGE, POINT = [1, 28, 28], [8]


def case(part: str, label: str, **changes: object) -> dict:
    usual = {"engine": "serial", "model": MLP, "shape": IMAGE, "clients": 1000, "samples": 10, "per_round": 10}
    return {"part": part, "label": label, "capacities": "1/4:1", "rounds": 12, **usual, **changes}


def cases() -> list[dict]:
    found = []
    for number in (10, 100, 1000):
        for engine in ("serial", "vectorised"):  # side by side: at 100 their ratio is one of the goals
            label = f"{engine}, {number:,} a round"
            found.append(case("clients", label, engine=engine, per_round=number, samples=60, rounds=7))
    for width in (1, 2, 4, 8, 16):
        model = {"name": "mlp", "options": {"hidden": [128 * width, 32 * width]}}
        found.append(case("models", f"mlp, {width} times as wide", model=model, capacities="1:1"))
    for width in (8, 16, 32, 64):
        model = {"name": "cnn", "options": {"widths": [width, 2 * width]}}
        found.append(case("models", f"cnn, {width} and {2 * width} channels", model=model, capacities="1:1"))
    for number in (1_000, 100_000, 1_000_000):
        found.append(
            case("registered", f"{number:,} registered", clients=number, samples=2, shape=POINT, model=SMALL, rounds=60)
        )
    for engine in ("serial", "vectorised", "processes"):
        found.append(
            case("rounds", f"{engine}, 1,000 rounds", engine=engine, shape=POINT, model=SMALL, rounds=1000, workers=2)
        )
    return found


def experiment(wanted: dict) -> Experiment:
    data, partition = points(wanted["clients"], wanted["samples"], wanted["shape"])
    changes = [
        f"rounds={wanted['rounds']}",
        f"engine={wanted['engine']}",
        f"workers={wanted.get('workers', 0)}",
        f"model.name={wanted['model']['name']}",
        f"devices.capacities={wanted['capacities']}",
        f"data.clients={wanted['clients']}",
        f"devices.per_round={wanted['per_round']}",
        "devices.dynamic=true",
        "evaluation.every=1000000",
        "evaluation.local=false",
    ]
    options = ", ".join(f"{key} = {value}" for key, value in wanted["model"]["options"].items())
    return Experiment(
        read_settings("", [*changes, f"model.options={{{options}}}"]).main, data=data, partition=partition
    )


def points(clients: int, each: int, shape: list[int]) -> tuple[Data, Partition]:
    """Random bytes as samples, dealt in turn."""
    generator = torch.Generator().manual_seed(0)
    samples = torch.randint(256, (clients * each, *shape), generator=generator, dtype=torch.uint8)
    labels = torch.arange(clients * each) % 10
    kind = "images" if len(shape) == 3 else "tensors"
    data = from_tensors(samples, labels, samples[:100], labels[:100], kind=kind)
    train = Shares.of(np.arange(clients).repeat(each), clients)
    return data, Partition("dealt", train, Shares.of(np.zeros(0, dtype=np.int64), clients), data.train.targets)


def measure(wanted: dict) -> dict:
    """In a process of its own: run the case."""
    run = experiment(wanted)
    before = resident()
    ends: list[float] = []
    memory: dict[int, float] = {}

    def note(line: dict) -> None:
        ends.append(time.perf_counter())
        if line["round"] in (10, 100, 1000) or line["round"] == wanted["rounds"] - 1:
            memory[line["round"]] = resident()

    forget_peak()
    run.run(on_round=note)
    seconds = [after - before for before, after in pairwise(ends[1:-1])]
    return {
        "label": wanted["label"],
        "parameters": sum(p.numel() for p in run.model.parameters()),
        "seconds": statistics.median(seconds),
        "set_up_mb": before,
        "more_mb": resident("VmHWM") - before,
        "at_round_mb": memory,
    }


def resident(which: str = "VmRSS", process: int | str = "self") -> float:
    """Megabytes of a process, by default this one: now, or at most so far (VmHWM)."""
    with open(f"/proc/{process}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(which)) / 1024


def forget_peak() -> None:
    """Let VmHWM begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="clients,models,registered,rounds")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(json.loads(arguments.case))))
        return
    found: dict[str, list[dict]] = {}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for wanted in cases():
        if wanted["part"] not in arguments.only.split(","):
            continue
        command = [sys.executable, __file__, "--case", json.dumps(wanted)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        record = json.loads(done.stdout.splitlines()[-1])
        if wanted["part"] not in found:
            print(
                f"\n{wanted['part']:28}{'parameters':>12}{'ms/round':>10}{'MB set up':>11}{'MB more':>9}  MB at round"
            )
        found.setdefault(wanted["part"], []).append(record)
        rounds = ", ".join(f"{number}: {mb:.0f}" for number, mb in record["at_round_mb"].items())
        print(
            f"{record['label']:28}{record['parameters']:12,}{1000 * record['seconds']:10.1f}"
            f"{record['set_up_mb']:11.0f}{record['more_mb']:9.0f}  {rounds}",
            flush=True,
        )
    if arguments.out:
        arguments.out.write_text(json.dumps({"torch": torch.__version__, **found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
