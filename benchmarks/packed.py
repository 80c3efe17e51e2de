"""A packed sweep beside the same runs one by one, in one run; and what the thesis' whole grid will take.

    python benchmarks/packed.py [--device cuda] [--data FOLDER] [--rounds 3] [--runs 12] [--out packed.json]
    python benchmarks/packed.py --only grid --device cuda     a few rounds of every pack, and the time they add up to

Runs are those of recipe thesis/table3-2 (MNIST, MLP 784-128-32-10, ten clients, batch 16, Adam), engine `vectorised`.
Without --data the images are random, of MNIST's shape: speed does not depend on what they show.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from fedwidth.config.read import read_settings
from fedwidth.data import Data, Transform, from_tensors
from fedwidth.engines.packed import packed_stacks
from fedwidth.experiment import Recorder, Stopped
from fedwidth.run.cache import Cache
from fedwidth.run.lockstep import run_in_lockstep
from fedwidth.run.lockstep.choices import Choices
from fedwidth.run.lockstep.evaluation import LockstepEvaluation
from fedwidth.run.lockstep.packing import group_for_packing
from fedwidth.settings import Settings

TABLES = ("thesis/table3-1", "thesis/table3-2")


def images() -> Data:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (70_000, 1, 28, 28), generator=generator, dtype=torch.uint8)
    labels = torch.arange(70_000) % 10
    transform = Transform((0.1307,), (0.3081,), scale=255)
    train, test = slice(60_000), slice(60_000, None)
    return from_tensors(
        pixels[train], labels[train], pixels[test], labels[test], kind="images", transform=transform, name="random"
    )


class Shared(Cache):
    """A cache with random images on it, unless there is a folder to read from."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._random = None if folder else images()

    def data(self, settings: Settings) -> Data:
        """The images."""
        return self._random or super().data(settings)


def settings_of(table: str, arguments: argparse.Namespace, *changes: str, seeds: Sequence[int]) -> list[Settings]:
    given = [f"device={arguments.device}", *changes, *arguments.set]
    if arguments.data:
        given.append(f"data.root={json.dumps(arguments.data)}")
    runs = read_settings(table, given).runs
    return [replace(run.settings, seed=seed, engine="vectorised") for seed in seeds for run in runs]


class Clock:
    """Where the time goes: calls of functions, with the device's work in them."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}

    def watch(self, owner: object, name: str, label: str) -> None:
        """Add up what calls of a function take."""
        function = getattr(owner, name)

        def call(*given, **options):
            began = self.now()
            result = function(*given, **options)
            self.seconds[label] = self.seconds.get(label, 0.0) + self.now() - began
            return result

        setattr(owner, name, call)

    def now(self) -> float:
        """Seconds, once the device has done what it was told."""
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter()

    def watch_all(self) -> None:
        """Watch the parts of a round."""
        self.watch(Choices, "choose", "choose")
        self.watch(packed_stacks, "clients_of", "orders")
        self.watch(packed_stacks.PackedStacks, "_cut", "cut")
        self.watch(packed_stacks.StackPool, "load_orders", "copy orders")
        self.watch(packed_stacks.StackPool, "train_groups", "train")
        self.watch(packed_stacks, "average_runs", "average")
        self.watch(LockstepEvaluation, "measure", "evaluate")
        self.watch(Recorder, "record", "metrics")


def compare(arguments: argparse.Namespace, clock: Clock) -> dict[str, object]:
    """The first runs of the table below full width, one by one and as one batch."""
    every = settings_of(TABLES[1], arguments, f"rounds={arguments.rounds}", seeds=[1])
    narrow = [settings for settings in every if settings.devices.capacities in ("0.25:1", "0.50:1")]
    chosen = narrow[:: max(1, len(narrow) // arguments.runs)][: arguments.runs]
    cache = Shared(arguments.data)
    for settings in chosen[:1]:  # whatever is made on first use
        cache.experiment(replace(settings, rounds=1)).run()
    began = clock.now()
    single = [cache.experiment(settings).run() for settings in chosen]
    alone = clock.now() - began
    began = clock.now()
    packed = run_in_lockstep([cache.experiment(settings) for settings in chosen])
    together = clock.now() - began
    state = max(
        float((one.server.state[name] - other.server.state[name]).abs().max())
        for one, other in zip(single, packed, strict=True)
        for name in one.server.state
    )
    accuracy = max(
        abs(a["global_accuracy"] - b["global_accuracy"])
        for one, other in zip(single, packed, strict=True)
        for a, b in zip(one.metrics, other.metrics, strict=True)
    )
    print(f"{len(chosen)} runs of {arguments.rounds} rounds | one by one {alone:.1f} s | as one batch {together:.1f} s")
    print(f"times faster: {alone / together:.1f}; largest difference of weights {state:.1e}, accuracy {accuracy:.1e}")
    return {"runs": len(chosen), "alone_s": alone, "packed_s": together, "weights": state, "accuracy": accuracy}


def measure_grid(arguments: argparse.Namespace, clock: Clock) -> dict[str, object]:
    """A few rounds of every pack of both tables, and what all rounds will take."""
    clock.watch_all()
    cache, rows = Shared(arguments.data), []
    for table in TABLES:
        every = settings_of(table, arguments, seeds=[1, 2, 3])
        for numbers in group_for_packing(every):
            began = clock.now()
            experiments = [cache.experiment(every[number]) for number in numbers]
            build = clock.now() - began
            rounds, laps, runs = every[numbers[0]].rounds, [clock.now()], len(numbers)

            def after(number: int, line: dict, laps=laps, runs=runs) -> None:
                del line
                if number == runs - 1:
                    laps.append(clock.now())
                    if len(laps) == 2:
                        clock.seconds.clear()  # the first round captures the graphs

            try:
                run_in_lockstep(experiments, on_round=after, stop=lambda laps=laps: len(laps) >= arguments.rounds)
            except Stopped:
                laps.append(clock.now())
            first, count = laps[1] - laps[0], len(laps) - 2
            each = (laps[-1] - laps[1]) / count
            parts = {label: seconds / count for label, seconds in clock.seconds.items()}
            row = {
                "table": table,
                "capacities": every[numbers[0]].devices.capacities,
                "runs": runs,
                "rounds": rounds,
                "build_s": build,
                "first_round_s": first,
                "round_s": each,
                "all_s": build + first + each * (rounds - 1),
                "parts_s": parts,
            }
            if arguments.device.startswith("cuda"):
                row["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
            rows.append(row)
            shown = ", ".join(f"{label} {1000 * seconds:.0f}" for label, seconds in parts.items())
            print(
                f"{table} {row['capacities']}: {runs} runs, first round {first:.1f} s, then {1000 * each:.0f} ms"
                f" ({shown} ms), all {rounds} rounds {row['all_s']:.0f} s",
                flush=True,
            )
            del experiments
    total = sum(row["all_s"] for row in rows)
    print(f"the whole grid, {sum(row['runs'] for row in rows)} runs: about {total / 60:.1f} minutes")
    return {"packs": rows, "minutes": total / 60}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", default="")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--only", choices=["compare", "grid"])
    parser.add_argument("--set", action="append", default=[], help="a setting of all runs, e.g. training.steps=2")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cuda = arguments.device.startswith("cuda")
    record: dict[str, object] = {
        "hardware": torch.cuda.get_device_name() if cuda else "CPU, one thread",
        "torch": torch.__version__,
    }
    clock = Clock(arguments.device)
    if arguments.only != "grid":
        record["compare"] = compare(arguments, clock)
    if arguments.only == "grid" or (arguments.only is None and cuda):
        record["grid"] = measure_grid(arguments, clock)
    if arguments.out:
        arguments.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
