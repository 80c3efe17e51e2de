"""What the clients of a round take whose models stay with them (DS-FL, FedGKT), on engines side by side.

    python benchmarks/own_models.py [--device cuda] [--model preresnet18] [--epochs 5] [--turns 5] [--out found.json]

The clients of the same round, the third one of a run, are trained again and again: lessons, local steps and answers,
without the server's part. Engines take turns in one process; the first turn of each does not count. The data are
digits, 20 clients with three labels, of which ten take part; with `--model mlp` a small network on 100 clients, of
which 50 take part, and with `--model preresnet18` random images of CIFAR-10's shape, 500 for each client.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from fedwidth.config.read import read_settings
from fedwidth.data import Data, Transform, from_tensors
from fedwidth.engines import make_engine
from fedwidth.errors import FellBack
from fedwidth.experiment import Experiment
from fedwidth.training.round import run_round

METHODS = {"dsfl": "{samples=1000, epochs=1}", "fedgkt": "{epochs=1}"}
ENGINES = ("serial", "vectorised", "cuda")
WARM_ROUNDS = 2
"""After these, clients have something to be taught."""


def images(clients: int) -> Data:
    """Random images of CIFAR-10's shape."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (560 * clients, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.arange(len(pixels)) % 10
    how = Transform((0.5,) * 3, (0.25,) * 3, scale=255)
    return from_tensors(pixels, labels, pixels[:100], labels[:100], kind="images", transform=how, name="random")


def setting(method: str, model: str, device: str, epochs: int) -> Experiment:
    """A run of this method whose clients can be asked to train."""
    changes = [f"method.name={method}", f"method.options={METHODS[method]}", f"device={device}", "engine=serial"]
    changes += [f"training.epochs={epochs}"]
    changes += ["data.public=0.1"] if method == "dsfl" else []
    if model == "preresnet18":
        changes += ["model.name=preresnet18", "training.batch_size=128", "evaluation.statistics_samples=0"]
        changes += ["precision=bf16"] if device != "cpu" else []
    if model == "mlp":
        changes += ["model.name=mlp", "model.options={hidden=[32, 32]}", "data.clients=100", "devices.per_round=50"]
    data = images(20) if model == "preresnet18" else None
    return Experiment(read_settings("quickstart", changes).main, data=data)


def measure(run: Experiment, turns: int, device: str) -> dict[str, float]:
    """The median seconds of each engine for the clients of one round; engines that fall back are left out."""
    server, engines = run.first_server(), {}
    for name in ENGINES:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FellBack)
            try:
                engines[name] = make_engine(replace(run.trainer, settings=replace(run.settings, engine=name)))
            except FellBack as said:
                print(f"  {said}")
    for number in range(WARM_ROUNDS):
        server, _, _ = run_round(run.rounds, server, run.cohort(number), engines["serial"])
    tasks = run.rounds.send(server, run.rounds.assign(server, run.cohort(WARM_ROUNDS)))
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(turns + 1):
        for name, engine in engines.items():
            began = time.perf_counter()
            engine.run(server.state, tasks, WARM_ROUNDS)
            if device != "cpu":
                torch.cuda.synchronize()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    for engine in engines.values():
        engine.close()
    return {name: median(found) for name, found in seconds.items()}


def main() -> None:
    """Print, and where asked for write, what each engine takes and how many times as fast as one by one that is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="quickstart", choices=["quickstart", "mlp", "preresnet18"])
    parser.add_argument("--epochs", type=int, default=1, help="local epochs")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    found = {}
    for method in METHODS:
        print(f"{method}, {wanted.model} on {wanted.device}, the clients of one round:")
        found[method] = measure(
            setting(method, wanted.model, wanted.device, wanted.epochs), wanted.turns, wanted.device
        )
        for name, seconds in found[method].items():
            print(
                f"  {name:12}{1000 * seconds:9.1f} ms  {found[method]['serial'] / seconds:6.2f} times as fast as serial"
            )
    if wanted.out is not None:
        wanted.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
