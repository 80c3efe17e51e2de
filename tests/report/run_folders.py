"""Run folders written by hand, as a run would leave them."""

import json
import math
from pathlib import Path

CAPACITIES = (1.0, 0.5, 0.25)


def config(name="", *, seed=1, rounds=12, method="fedrolex", extra=""):
    """A config.toml."""
    return (
        f"name = {json.dumps(name)}\nseed = {seed}\nrounds = {rounds}\n{extra}\n"
        f'[method]\nname = "{method}"\n[model]\nname = "mlp"\noptions = {{ hidden = [12, 6] }}\n'
        '[data]\nname = "digits"\nclients = 6\npartition = "iid"\n'
        '[devices]\ncapacities = "a1-b1-c1"\nper_round = 3\n'
    )


def lines(rounds, *, every=2, accuracy=lambda round: 0.5 + 0.03 * round):
    """The metrics of so many rounds."""
    found = []
    for round in range(1, rounds + 1):
        line = {
            "round": round,
            "clients": [0, 1, 2],
            "capacities": list(CAPACITIES),
            "train_loss": 2.0 / round,
            "bytes_down": 1000,
            "bytes_up": 500,
            "macs": 7000,
            "seconds": 0.5 * round,
        }
        if round % every == 0:
            at = accuracy(round)
            line |= {"global_accuracy": at, "global_loss": 1 / round, "local_accuracy": at}
            line["capacity_accuracy"] = {"0.25": 0.5 * at, "1": at}
        found.append(line)
    return found


def write_run(
    folder: Path,
    name="",
    *,
    finished=True,
    rounds=12,
    done=None,
    metrics=None,
    clients=True,
    counts=True,
    **settings,
):
    """A run folder; `metrics` replaces its lines. Without `counts` it is one of an earlier version."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(config(name, rounds=rounds, **settings))
    metrics = metrics if metrics is not None else lines(done or rounds)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    if finished:
        last = next((line for line in reversed(metrics) if "global_accuracy" in line), {})
        accuracy = last.get("global_accuracy", math.nan)
        facts = {"method": settings.get("method", "fedrolex"), "rounds": rounds, "global_accuracy": accuracy}
        facts |= {"local_accuracy": accuracy, "seconds": 6.0, "seed": settings.get("seed", 1), "version": "0.1.0"}
        (folder / "summary.json").write_text(json.dumps(facts))
    if finished and clients:
        rows = [
            {"client": c, "capacity": CAPACITIES[c % 3], "samples": 10 + c, "labels": [c % 4, 9], "accuracy": 0.8}
            for c in range(6)
        ]
        for row in rows if counts else ():
            row["counts"] = [row["samples"] - 6, 6]
        (folder / "clients.json").write_text(json.dumps(rows))
    return folder
