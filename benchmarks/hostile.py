"""What hostile devices do to a run, and what server.clip, server.screen and server.robust make of it, over seeds.

    python benchmarks/hostile.py [--seeds 1,2,3,4,5] [--hostile 1,2] [--clip 2] [--only absent,median …] [--json FILE]
        [--set devices.per_round=20]

The quick start (20 clients, 10 a round, 60 rounds) is trained in this process by the engine its settings name. A
hostile client trains like any other and then sends the opposite of its change, as long as it is allowed to be:

    at the norm bound     10 times the norm of what it was sent, all that answers of devices were once checked for
    at the clip           exactly server.clip times the median of the others, which it is told: it is never clipped
    sign                  its own change as long as it is: it looks like everybody else's, and points the other way

The last one is what robust sums are compared by: `--only` with `sign`, `trimmed`, `median` and `norm-bounded`, of which
nobody is hostile where `--hostile` says 0.

`absent` is the same run in which these clients are drawn and do not answer: what would be without them.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from fedwidth.config.read import read_settings
from fedwidth.core.cohort import CohortSum
from fedwidth.engines import make_engine
from fedwidth.errors import UpdateError
from fedwidth.experiment import Experiment
from fedwidth.methods import Task
from fedwidth.randomness import numpy_generator
from fedwidth.training.engine import Engine, Report
from fedwidth.training.server.clipping import norm

NORM_BOUND = 10.0
QUIET = ("evaluation.capacities=[]", "evaluation.local=false")


ROBUST = ("trimmed", "median", "norm-bounded")


@dataclass(frozen=True)
class Case:
    """A run: what hostile clients do, and what the server does about it."""

    title: str
    attack: str
    """none, absent, norm, clip or sign."""
    clip: bool = False
    screen: bool = False
    quarantine: bool = True
    robust: str = "none"


CASES = {
    "plain": Case("nobody is hostile", "none"),
    "clipped": Case("nobody is hostile, clip", "none", clip=True),
    "guarded": Case("nobody is hostile, clip and screen", "none", clip=True, screen=True),
    "absent": Case("hostile ones absent", "absent"),
    "undefended": Case("flip at the norm bound", "norm"),
    "norm-clipped": Case("flip at the norm bound, clip, no quarantine", "norm", clip=True, quarantine=False),
    "norm-guarded": Case("flip at the norm bound, clip and screen", "norm", clip=True, screen=True),
    "bound-clipped": Case("flip at the clip, clip", "clip", clip=True),
    "bound-guarded": Case("flip at the clip, clip and screen", "clip", clip=True, screen=True),
    "sign": Case("sign flipped", "sign"),
    "sign-guarded": Case("sign flipped, clip and screen", "sign", clip=True, screen=True),
    **{name: Case(f"sign flipped, {name}", "sign", robust=name) for name in ROBUST},
    **{f"far-{name}": Case(f"flip at the norm bound, {name}", "norm", robust=name) for name in ROBUST},
}
HONEST = ("plain", "clipped", "guarded")


class Hostile:
    """An engine some of whose clients do not send what they trained."""

    def __init__(self, engine: Engine, experiment: Experiment, who: Collection[int], *, attack: str, clip: float):
        self.engine, self.experiment, self.who, self.attack, self.clip = engine, experiment, who, attack, clip

    def run(
        self, state: Mapping[str, Tensor], tasks: Sequence[Task], round: int, **_more: object
    ) -> tuple[Sequence[CohortSum], Report]:
        """Train everyone, then turn round what the hostile ones send."""
        if self.attack == "absent":
            there = [task for task in tasks if task.client not in self.who]
            sums, report = self.engine.run(state, there, round)
            return sums, replace(report, absent={c: "absent" for c in self.who if c in {t.client for t in tasks}})
        if not any(task.client in self.who for task in tasks):
            return self.engine.run(state, tasks, round)
        single = [replace(task, single=True) for task in tasks]
        trained, report = self.engine.run(state, single, round)
        starts = [task.part.cut(state, self.experiment.plan) for task in tasks]
        changes = [
            {name: mean - start[name] for name, mean in total.mean.items()}
            for total, start in zip(trained, starts, strict=True)
        ]
        honest = [norm(d) for d, task in zip(changes, tasks, strict=True) if task.client not in self.who]
        sums: dict[str, CohortSum] = {}
        for total, task, start, change in zip(trained, tasks, starts, changes, strict=True):
            if task.client in self.who and (length := norm(change)):
                bound = NORM_BOUND * max(1.0, norm(start))
                if self.attack == "sign":
                    bound = length
                elif self.attack == "clip":
                    bound = self.clip * statistics.median_low(honest or [length])
                mean = {name: start[name] - own * (bound / length) for name, own in change.items()}
                total = CohortSum.of(total.index, mean, total.weight, 1)
            sums.setdefault(task.cohort, CohortSum(total.index)).merge(total)  # by itself where tasks are single
        return list(sums.values()), report

    def close(self) -> None:
        """Give back what the engine holds."""
        self.engine.close()


def hostile_clients(seed: int, number: int, clients: int) -> frozenset[int]:
    """Who is hostile: drawn anew for every seed, whatever they can afford."""
    return frozenset(numpy_generator(seed, "hostile").permutation(clients)[:number].tolist())


def accuracy(case: Case, *, seed: int, hostile: int, clip: float, changes: Sequence[str] = ()) -> float:
    """The accuracy after the last round of the quick start; 0 where the run ends in weights that are not finite."""
    own = [f"seed={seed}", f"server.clip={clip if case.clip else 0}", f"server.screen={str(case.screen).lower()}"]
    own += [] if case.quarantine else ["server.strikes=0"]
    own += [f"server.robust={case.robust}"]
    experiment = Experiment(
        read_settings("quickstart", [*QUIET, "evaluation.every=60", *own, *changes], main=True).main
    )
    who = hostile_clients(seed, hostile if case.attack != "none" else 0, len(experiment.partition))
    engine = Hostile(make_engine(experiment.trainer), experiment, who, attack=case.attack, clip=clip)
    try:
        return float(experiment.run(engine=engine).summary["global_accuracy"])
    except UpdateError:  # weights that are not finite: there is no model any more
        return 0.0


def main() -> None:
    """Print a table in Markdown, and write what it was made of."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument("--hostile", default="1,2", help="numbers of hostile clients, of 20")
    parser.add_argument("--clip", type=float, default=2.0)
    parser.add_argument("--only", default=",".join(CASES), help="cases, of " + ", ".join(CASES))
    parser.add_argument("--set", action="append", default=[], help="change a setting of all runs: key=value")
    parser.add_argument("--json", type=Path, help="also write every accuracy here")
    given = parser.parse_args()
    torch.set_num_threads(1)
    seeds = [int(seed) for seed in given.seeds.split(",")]
    found = []
    print(
        f"| hostile of 20 | | mean of {len(seeds)} seeds | lowest to highest |\n| ---: | --- | ---: | --- |", flush=True
    )
    for name in given.only.split(","):
        case = CASES[name]
        for hostile in [0] if name in HONEST else [int(number) for number in given.hostile.split(",")]:
            scores = [
                100 * accuracy(case, seed=seed, hostile=hostile, clip=given.clip, changes=given.set) for seed in seeds
            ]
            mean = statistics.mean(scores)
            print(f"| {hostile} | {case.title} | {mean:.1f} | {min(scores):.1f} to {max(scores):.1f} |", flush=True)
            found.append({"case": name, "hostile": hostile, "clip": given.clip, "seeds": seeds, "accuracies": scores})
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
