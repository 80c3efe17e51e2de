"""What saving costs: a run as it is by default beside one that never saves, taking turns in one process.

    python benchmarks/saving.py [--device cuda] [--seconds 60] [--pairs 9] [--runs 1] [--out saving.json]
    python benchmarks/saving.py --device cpu --model cnn --seconds 5      minutes, on a processor

A turn is a stretch of `--seconds` of a run that has warmed up. The one that saves is given these seconds as its
`checkpoint_seconds`, so that there is one save in each of its turns, whole: with less than the default of 60 it costs
more than by default. Both write their metrics. With `--runs` the turns are of packs of so many runs. Goal: 5 % at most.

FedRolex, ten clients a round, batch 128, one local epoch of 500 samples; random images of CIFAR's shape.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from engines import images
from fedwidth.config.read import read_settings
from fedwidth.experiment import Experiment, Stopped
from fedwidth.run import checkpoint
from fedwidth.run.lockstep import run_in_lockstep

TOML = """
rounds = 1000000
[data]
clients = 100
[devices]
capacities = "a1-b1-c1-d1-e1"
[training]
batch_size = 128
[evaluation]
every = 1000000
local = false
"""
NEVER = 1e9


class Turn:
    """Called after each round of a run (or of the last of a pack): when rounds ended, once it has warmed up."""

    def __init__(self, seconds: float, last: int) -> None:
        self.seconds, self.last = seconds, last
        self.began, self.warmed, self.stamps = time.perf_counter(), 0, []

    def note(self, number: int) -> None:
        """A round has ended. The first ones capture graphs, and in a tenth of the time the save can end."""
        now = time.perf_counter()
        if number != self.last:
            return
        self.warmed += 1
        if self.stamps or (self.warmed >= 3 and now - self.began >= self.seconds / 10):
            self.stamps.append(now)

    def is_over(self) -> bool:
        """Asked before the round is saved, which the stop then is in any case: this round does not count."""
        return len(self.stamps) > 1 and self.stamps[-1] - self.stamps[0] >= self.seconds

    @property
    def round_seconds(self) -> float:
        """Mean over the turn, but for the round at the end of which it was stopped."""
        return (self.stamps[-2] - self.stamps[0]) / (len(self.stamps) - 2)


def take_turn(experiments: list[Experiment], seconds: float) -> Turn:
    turn = Turn(seconds, len(experiments) - 1)
    with tempfile.TemporaryDirectory() as place:
        places = [Path(place) / str(number) for number in range(len(experiments))]
        try:
            if len(experiments) == 1:
                experiments[0].run(places[0], on_round=lambda _: turn.note(0), stop=turn.is_over)
            else:
                run_in_lockstep(experiments, places, on_round=lambda number, _: turn.note(number), stop=turn.is_over)
        except Stopped:
            pass
    return turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="preresnet18")
    parser.add_argument("--seconds", type=float, default=60.0, help="of a turn, and between saves")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--runs", type=int, default=1, help="runs of a pack; 1: a run by itself")
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--set", action="append", default=[], help="a setting of all runs, e.g. precision=bf16")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    given = [f"model.name={arguments.model}", f"device={arguments.device}", *arguments.set]
    data, sides = images(arguments.samples), {}
    for name, seconds in (("saves", arguments.seconds), ("never", NEVER)):
        sides[name] = []
        for seed in range(1, arguments.runs + 1):
            changes = [*given, f"seed={seed}", f"checkpoint_seconds={seconds}"]
            sides[name].append(Experiment(read_settings(TOML, changes).main, data=data))
            data = sides[name][-1].data  # on the device by now
    saves, write = [], checkpoint.write_copy
    checkpoint.write_copy = lambda *copy, **more: (write(*copy, **more), saves.append(copy))
    rows = []
    for number in range(arguments.pairs):
        row = {}
        for name in ("saves", "never") if number % 2 else ("never", "saves"):
            saves.clear()
            row[name] = take_turn(sides[name], arguments.seconds).round_seconds
            row[f"{name}_written"] = len(saves) - arguments.runs  # without those of the stop
        row["ratio"] = row["saves"] / row["never"]
        rows.append(row)
        print(
            f"pair {number + 1}: {1000 * row['saves']:.1f} ms a round with {row['saves_written']} saves,"
            f" {1000 * row['never']:.1f} with {row['never_written']}, ratio {row['ratio']:.3f}",
            flush=True,
        )
    ratio = statistics.median(row["ratio"] for row in rows)
    print(f"median ratio of {len(rows)} pairs: {ratio:.3f}, a save every {arguments.seconds:g} s (goal: 1.05 at most)")
    if arguments.out:
        hardware = torch.cuda.get_device_name() if arguments.device.startswith("cuda") else "CPU, one thread"
        record = {"hardware": hardware, "torch": torch.__version__, **vars(arguments), "pairs": rows, "ratio": ratio}
        arguments.out.write_text(json.dumps(record, indent=2, default=str) + "\n")


if __name__ == "__main__":
    main()
