"""What a deployment asks of a device: bytes on the wire in a round. (Memory: `device_memory.py`.)

    python benchmarks/wire.py [--capacities 1,1/2,1/4] [--rounds 4] [--models mlp,cnn]

A real deployment on this machine (tests/flower/loopback.py): each device reaches the server through a proxy that passes
bytes on and counts them, headers of HTTP and TLS and polling included. Several models, of few and of many tensors, are
trained one after the other. The first round of each is left out (the app itself travels before it); last, what an idle
connection carries is counted for a minute.

The printed table sets what was measured beside the estimate that `bytes=` budgets are judged by. Below it stand the
wire's constants of deployment/budgets.py as this measurement gives them, by least squares.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests" / "flower")]

from loopback import Loopback, Proxy  # noqa: E402

from fedwidth.config.read import read_settings  # noqa: E402
from fedwidth.core.cost import cost  # noqa: E402
from fedwidth.deployment.budgets import POLLING_SECONDS, bytes_beside  # noqa: E402
from fedwidth.devices.capacity import parse_capacity  # noqa: E402
from fedwidth.experiment import Experiment  # noqa: E402

IDLE_SECONDS = 60
MODELS = {
    "mlp": 'model.name = "mlp"\nmodel.options = { hidden = [64] }\n',
    "wide mlp": 'model.name = "mlp"\nmodel.options = { hidden = [1024, 512] }\n',
    "cnn": 'model.name = "cnn"\nmodel.options = { widths = [32, 64, 64] }\n',
    "deep cnn": 'model.name = "cnn"\nmodel.options = { widths = [16, 16, 16, 16, 16, 16, 16, 16] }\n',
}


@dataclass(frozen=True)
class Measured:
    """One model at one capacity: what a round sends, and what it was estimated to send."""

    model: str
    capacity: str
    tensors: int
    sub_model: int
    """Bytes of the sub-model's tensors, buffers included; they travel down and up."""
    down: float
    up: float
    seconds: float
    """How long a round took."""
    estimated: float


def recipe(model: str, clients: int, rounds: int) -> str:
    """A run of all clients in every round."""
    return (
        f'rounds = {rounds}\ndata.clients = {clients}\ndevices.per_round = {clients}\ndata.partition = "iid"\n'
        f"evaluation.local = false\ntraining.epochs = 1\n{MODELS[model]}"
    )


def measure(loop: Loopback, proxies: list[Proxy], model: str, capacities: list[str], rounds: int) -> list[Measured]:
    """Train one model on all devices and count the bytes of its rounds but the first."""
    text = recipe(model, len(capacities), rounds)
    loop.begin(text, model.replace(" ", "-"))
    process = loop.run()
    counts = []
    for done in range(1, rounds + 1):
        loop.wait_rounds(done, 600)
        counts.append((time.monotonic(), [(proxy.down, proxy.up) for proxy in proxies]))
    process.wait(120)
    experiment = Experiment(read_settings(text).main)
    copies, beside = bytes_beside(experiment)
    costs = cost(experiment.model, experiment.plan, experiment.data.example(), [parse_capacity(c) for c in capacities])
    tensors = sum(name not in experiment.plan.tied for name in experiment.plan.shapes)
    (began, first), (ended, last) = counts[0], counts[-1]
    found = []
    for client, capacity in enumerate(capacities):
        down, up = ((last[client][way] - first[client][way]) / (rounds - 1) for way in (0, 1))
        sub_model = int(costs[client].bytes + costs[client].buffer_bytes)
        estimated = copies * costs[client].bytes + beside
        seconds = (ended - began) / (rounds - 1)
        found.append(Measured(model, capacity, tensors, sub_model, down, up, seconds, estimated))
    return found


def fit(found: list[Measured], idle: float) -> tuple[float, float]:
    """Bytes for each tensor and for each round beside the tensors themselves, polling left out, by least squares."""
    beside = [each.down + each.up - 2 * each.sub_model - idle * each.seconds for each in found]
    columns = np.array([[each.tensors, 1.0] for each in found])
    (per_tensor, per_round), *_ = np.linalg.lstsq(columns, np.array(beside), rcond=None)
    return float(per_tensor), float(per_round)


def main() -> None:
    """Print a table in Markdown, and the constants that fit it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capacities", default="1,1/2,1/4")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--models", default=",".join(MODELS))
    given = parser.parse_args()
    capacities, models = given.capacities.split(","), given.models.split(",")
    with tempfile.TemporaryDirectory() as folder:
        text = recipe(models[0], len(capacities), given.rounds)
        loop = Loopback(Path(folder) / "d", text, nodes=len(capacities), capacities=tuple(capacities))
        proxies = [Proxy(loop.setup.port) for _ in capacities]
        try:
            loop.superlink()
            loop.register()
            for client, proxy in enumerate(proxies):
                loop.node(client, through=proxy.port)
            found = []
            for model in models:
                found += measure(loop, proxies, model, capacities, given.rounds)
                print(*found[-len(capacities) :], sep="\n", file=sys.stderr, flush=True)
            before = [proxy.down + proxy.up for proxy in proxies]
            time.sleep(IDLE_SECONDS)
            now = [proxy.down + proxy.up for proxy in proxies]
        finally:
            loop.close()
            for proxy in proxies:
                proxy.close()
    idle = sum(now) - sum(before)
    idle_rate = idle / len(proxies) / IDLE_SECONDS
    print("| model | tensors | capacity | sub-model | down | up | both | estimate | off by | s a round |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for each in found:
        both = each.down + each.up
        numbers = (each.sub_model, each.down, each.up, both, each.estimated)
        shown = " | ".join(f"{number:,.0f}" for number in numbers)
        off = f"{100 * (each.estimated / both - 1):+.0f} % | {each.seconds:.1f}"
        print(f"| {each.model} | {each.tensors} | {each.capacity} | {shown} | {off} |")
    per_tensor, per_round = fit(found, idle_rate)
    print(f"\nan idle device: {idle_rate:.0f} bytes a second, {idle_rate * 86_400 / 1e6:.1f} MB a day")
    print(f"least squares: {per_tensor:,.0f} bytes a tensor, {per_round:,.0f} a round beside polling, that is")
    print(f"{per_round + POLLING_SECONDS * idle_rate:,.0f} with polling for {POLLING_SECONDS} s")


if __name__ == "__main__":
    main()
