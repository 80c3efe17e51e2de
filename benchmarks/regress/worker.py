"""One source tree's side of `benchmarks/regress.py`: times its cases when asked to, by lines of JSON over pipes.

    {"case": NAME, "rounds": 1, "repetitions": 5}     begin a case; its first turn warms it up
    {"rounds": 3, "repetitions": 10}                  a turn: after a round that is not timed, ten times three rounds
    {"end": true}                                     give back what the case holds

A turn is answered by {"seconds": [of a round, for each repetition], "processor": [the same in processor time],
"note": …} or by {"error": …}, the end by {}.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
import traceback
import warnings
from itertools import pairwise
from pathlib import Path
from typing import TextIO

import torch
from cases import cases

import fedwidth


class Ended(Exception):
    """The case is to end."""


class Turns:
    """Lets a case go on while it is this side's turn, and times its rounds."""

    def __init__(self, requests: TextIO, answers: TextIO, device: str) -> None:
        self.requests, self.answers, self.device = requests, answers, device
        self.rounds = self.left = 0
        self.stamps: list[tuple[float, float]] = []

    def answer(self, **content: object) -> None:
        """Send a line."""
        print(json.dumps(content), file=self.answers, flush=True)

    def begin(self, request: dict) -> None:
        """Begin a turn; its first round is not timed, because the other side has had the caches."""
        if "rounds" not in request:
            raise Ended
        self.rounds, self.stamps = request["rounds"], []
        self.left = 1 + request["rounds"] * request["repetitions"]

    def over(self, note: object) -> None:
        """A round is over: go on with the turn, or answer it and wait for the next."""
        self.left -= 1
        if self.left % self.rounds == 0:
            if self.device.startswith("cuda"):
                torch.cuda.synchronize()
            self.stamps.append((time.perf_counter(), time.process_time()))
        if not self.left:
            clocks = zip(*self.stamps, strict=True)
            seconds, processor = ([(b - a) / self.rounds for a, b in pairwise(stamps)] for stamps in clocks)
            self.answer(seconds=seconds, processor=processor, note=note)
            line = self.requests.readline()
            self.begin(json.loads(line) if line else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever is printed on the way does not belong to the answers
    warnings.filterwarnings("error", message=".*falls back")  # it would be another engine that is timed
    torch.set_num_threads(1)
    known = cases(device)
    turns = Turns(sys.stdin, answers, device)
    hardware = torch.cuda.get_device_name() if device.startswith("cuda") else "CPU, one thread"
    facts = {"torch": torch.__version__, "hardware": hardware}
    turns.answer(source=str(Path(fedwidth.__file__).resolve().parents[1]), cases=list(known), **facts)
    while line := sys.stdin.readline():
        request = json.loads(line)
        if "case" in request:
            try:
                turns.begin(request)
                known[request["case"]](turns.over)
            except Ended:
                pass
            except Exception as error:
                traceback.print_exc()
                turns.answer(error=f"{type(error).__name__}: {error}")
                continue
        gc.collect()
        if device.startswith("cuda"):
            torch.cuda.empty_cache()
        turns.answer()


if __name__ == "__main__":
    main()
