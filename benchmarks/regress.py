"""The speed of this source tree against an older one's, turn by turn in one call.

    git archive 9a33dee src | tar -x -C FOLDER
    python benchmarks/regress.py --old FOLDER [--device cuda] [--pairs 9] [--only digits …] [--json regress.json]

FOLDER holds an older `src/fedwidth`. Each tree has a process that sets a case up once (benchmarks/regress/cases.py)
and then waits; they take turns, old new new old old new …, and only one works at a time. Of a turn the fastest
repetition counts, of a pair of turns the ratio new / old, and of a case the median over its pairs. A case fails where
that is above the limit (5 % slower on a CPU, 3 % on a GPU), and then the exit status is 1.

On a CPU all of it is done twice (`--starts`), the second time with the new tree's process started before the old one's,
and a pair's ratio is the geometric mean of both: of two processes the one started later is often a few per cent faster.

On a GPU both processes are bound to the same two processors (`--processors`). What these cases cost there is largely
Python starting kernels, and on a shared machine one processor may be 1.4 times as fast as the next.

Two more ratios are for judging the first. "Whole turns" takes the mean of a turn's repetitions: it is noisier, but sees
what costs something only now and then. "Processor" takes processor time (of the main process, where there are
several), which other work on a busy machine disturbs less. "Other losses" says that the two did not train alike.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
WARM = 5
"""Rounds after the first that warm a case up."""
PARTS = 10
"""Repetitions of a turn, unless a round takes longer than such a part of it."""
LEAST = 3
"""Repetitions of every turn."""
HEAD = f"{'ms a round':34}{'old':>9}{'new':>9}{'new/old':>9}  {'quartiles':15}{'whole turns':>13}{'processor':>11}"
SECONDS, LIMITS = {"cpu": 0.6, "cuda": 0.6}, {"cpu": 1.05, "cuda": 1.03}
PROCESSORS = {"cpu": 0, "cuda": 2}
STARTS = {"cpu": 2, "cuda": 1}
"""With the same source on both sides `extract` took 1 to 16 % less processor time in the process that was started
later, in each of 33 comparisons within nine starts, whichever core it ran on and whoever's turn came first; why is
not known. An even number of starts evens it out. That was on a virtual machine with two busy cores; on a GPU it has
not been measured, and there setting the cases up takes long."""
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**34)}
"""Lets glibc keep memory that was freed. Otherwise it depends on what happens to lie at the end of the heap whether
every round gives memory back to the system and asks for it again, which can make a process several times slower."""


class Failed(Exception):
    """A case could not be run."""


class Side:
    """A source tree, and the process that times its cases."""

    def __init__(self, name: str, tree: Path, device: str) -> None:
        self.name = name
        source = (tree / "src").resolve()
        command = [sys.executable, str(HERE / "regress" / "worker.py"), "--device", device]
        environment = {**os.environ, **KEEP_MEMORY, "PYTHONPATH": str(source)}
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.facts = self.answer()
        if self.facts["source"] != str(source):
            sys.exit(f"the {name} side imports fedwidth from {self.facts['source']}, not from {source}")

    def ask(self, **request: object) -> dict:
        """Send a request and wait for its answer."""
        assert self.process.stdin
        with suppress(BrokenPipeError):  # then there is no answer either
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        return self.answer()

    def answer(self) -> dict:
        """The next line."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the process of the {self.name} side ended; what it said is above")
        found = json.loads(line)
        if "error" in found:
            raise Failed(f"{self.name}: {found['error']}")
        return found

    def close(self) -> None:
        """End the process: it does so where there is nothing more to read."""
        assert self.process.stdin
        assert self.process.stdout
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@dataclass(frozen=True)
class Row:
    """What was found for a case."""

    case: str
    old_ms: float
    """A round, by the fastest repetition: the median over turns."""
    new_ms: float
    ratio: float
    """new / old: the median over pairs."""
    quartiles: tuple[float, float]
    whole: float
    """The same by all repetitions of a turn."""
    processor: float
    """The same by processor time, of the repetition with the least."""
    turns_ms: list[list[tuple[float, float]]]
    """Old and new by the fastest repetition of each turn: pair by pair, and for each of them start by start."""
    alike: bool
    """Whether both sides had the same losses, in every pair."""

    @classmethod
    def of(cls, case: str, starts: Sequence[Sequence[tuple[dict, dict]]]) -> Row:
        """From what the old and the new side answered, start by start and pair by pair."""
        pairs = list(zip(*starts, strict=True))
        best = [[(1000 * min(old["seconds"]), 1000 * min(new["seconds"])) for old, new in pair] for pair in pairs]
        ratios = [mean_ratio(pair) for pair in best]
        whole = [mean_ratio([(sum(old["seconds"]), sum(new["seconds"])) for old, new in pair]) for pair in pairs]
        work = [mean_ratio([(min(old["processor"]), min(new["processor"])) for old, new in pair]) for pair in pairs]
        return cls(
            case,
            old_ms=statistics.median(old for pair in best for old, _ in pair),
            new_ms=statistics.median(new for pair in best for _, new in pair),
            ratio=statistics.median(ratios),
            quartiles=quartiles(ratios),
            whole=statistics.median(whole),
            processor=statistics.median(work),
            turns_ms=best,
            alike=all(old["note"] == new["note"] for pair in pairs for old, new in pair),
        )


def mean_ratio(times: Sequence[tuple[float, float]]) -> float:
    """The geometric mean of new / old."""
    return statistics.geometric_mean([new / old for old, new in times])


def take_turns(case: str, sides: Sequence[Side], *, pairs: int, seconds: float) -> list[tuple[dict, dict]]:
    """Set a case up on both sides and let them take turns of so many seconds: what old and new answer, pair by pair.

    The first side begins. In the next pair it is the other one, in case that being first is better or worse.
    """
    try:
        warm = [side.ask(case=case, rounds=1, repetitions=WARM)["seconds"] for side in sides]
        each = min(min(times) for times in warm)
        rounds = max(1, round(seconds / PARTS / each))
        repetitions = max(LEAST, round(seconds / (rounds * each)))
        found = []
        for number in range(pairs):
            order = sides if number % 2 == 0 else sides[::-1]
            turns = {side.name: side.ask(rounds=rounds, repetitions=repetitions) for side in order}
            found.append((turns["old"], turns["new"]))
        return found
    finally:
        for side in sides:
            side.ask(end=True)


def quartiles(numbers: Sequence[float]) -> tuple[float, float]:
    """The lower and the upper one."""
    if len(numbers) == 1:
        return numbers[0], numbers[0]
    lower, _, upper = statistics.quantiles(numbers, n=4, method="inclusive")
    return lower, upper


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--old", type=Path, required=True, help="a folder with an older src/fedwidth")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pairs", type=int, default=9, help="turns of each side in a start")
    parser.add_argument("--starts", type=int, help=f"times both processes are started; {STARTS}")
    parser.add_argument("--seconds", type=float, help=f"of a turn, about; {SECONDS}")
    parser.add_argument("--limit", type=float, help=f"largest ratio new / old; {LIMITS}")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="NAME", help="cases whose names contain one of these"
    )
    parser.add_argument(
        "--processors", type=int, help=f"how many processors both sides share (0: all the machine has); {PROCESSORS}"
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if not (arguments.old / "src" / "fedwidth").is_dir():
        parser.error(f"there is no src/fedwidth in {arguments.old}")
    device, kind = arguments.device, "cuda" if arguments.device.startswith("cuda") else "cpu"
    seconds, limit = arguments.seconds or SECONDS[kind], arguments.limit or LIMITS[kind]
    starts, pairs = arguments.starts or STARTS[kind], arguments.pairs
    if min(starts, pairs) < 1:
        parser.error("--pairs and --starts must be at least 1")
    bind(PROCESSORS[kind] if arguments.processors is None else arguments.processors)
    rows: list[Row] = []
    answers: dict[str, list[list[tuple[dict, dict]]]] = {}
    failures: dict[str, str] = {}
    for start in range(starts):
        with ExitStack() as stack:
            sides = {}
            for name in ("old", "new") if start % 2 == 0 else ("new", "old"):
                sides[name] = Side(name, arguments.old if name == "old" else HERE.parent, device)
                stack.callback(sides[name].close)
            facts = sides["new"].facts
            chosen = [case for case in facts["cases"] if any(text in case for text in arguments.only)]
            if not chosen:
                parser.error(f"no case has such a name; there are: {', '.join(facts['cases'])}")
            if not start:
                print(f"{facts['hardware']}, torch {facts['torch']}: {pairs} pairs, {starts} starts, limit {limit:g}")
                print(HEAD, flush=True)
            for case in chosen:
                if case in failures:
                    continue
                try:
                    found = take_turns(case, list(sides.values()), pairs=pairs, seconds=seconds)
                except Failed as error:
                    failures[case] = str(error)
                    print(f"{case:34}failed: {error}", flush=True)
                    continue
                answers.setdefault(case, []).append(found)
                if start == starts - 1:
                    rows.append(Row.of(case, answers[case]))
                    print(shown(rows[-1], limit), flush=True)
    slower = [row.case for row in rows if row.ratio > limit]
    print(f"slower than the limit: {', '.join(slower) or 'none'}")
    if arguments.json:
        about = {"device": device, "hardware": facts["hardware"], "torch": facts["torch"], "load": os.getloadavg()[0]}
        about |= {"starts": starts, "pairs": pairs, "seconds": seconds, "limit": limit}
        content = about | {"slower": slower, "failed": failures, "cases": [asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(content, indent=2) + "\n")
    sys.exit(1 if slower or failures else 0)


def bind(processors: int) -> None:
    """Let this process and those it starts use the last so many processors of the machine only; 0: all of them."""
    if processors:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-processors:])


def shown(row: Row, limit: float) -> str:
    """A line of the table."""
    spread = f"{row.quartiles[0]:.3f} – {row.quartiles[1]:.3f}"
    remarks = ["slower"] * (row.ratio > limit) + ["other losses"] * (not row.alike)
    times = f"{row.case:34}{row.old_ms:9.2f}{row.new_ms:9.2f}{row.ratio:9.3f}"
    return f"{times}  {spread:15}{row.whole:13.3f}{row.processor:11.3f}  {', '.join(remarks)}".rstrip()


if __name__ == "__main__":
    main()
