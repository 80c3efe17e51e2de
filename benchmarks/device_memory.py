"""What a device's processes take of memory: a real deployment on this machine, measured while it trains.

    python benchmarks/device_memory.py [--rounds 3]

Two figures for each process: RSS, which counts what processes share once for each of them, and PSS, in which they share
it; the sum of the latter is what the device really needs. Linux only. Needs the environment of `make test-flower`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "flower")]

from loopback import Loopback
from small_runs import RECIPE

NAMES = {
    "device.py": "device.py",
    "node.trainer": "trainer",
    "supernode.py": "SuperNode",
    "superexec": "SuperExec",
    "clientapp": "ClientApp",
}


def memory_of(process: int) -> tuple[int, int]:
    """RSS and PSS of a process, in kB."""
    found = {}
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("Rss", "Pss"):
            found[name] = int(rest.split()[0])
    return found["Rss"], found["Pss"]


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rounds", type=int, default=3)
    rounds = arguments.parse_args().rounds
    recipe = RECIPE.replace("rounds = 3", f"rounds = {rounds}").replace("data.clients = 6", "data.clients = 2")
    recipe = recipe.replace("devices.per_round = 3", "devices.per_round = 2").replace('"a1-b1-c1"', '"a1"')
    most: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    whole = (0, 0)
    with tempfile.TemporaryDirectory() as folder:
        deployment = Loopback(Path(folder) / "fed", recipe, nodes=2, capacities=("1",))
        try:
            deployment.superlink()
            deployment.register()
            for client in range(2):
                deployment.node(client)
            deployment.run()
            deadline = time.monotonic() + 500
            while len(deployment.lines()) < rounds and time.monotonic() < deadline:
                now: dict[str, tuple[int, int]] = {}
                for process, words in deployment.family(0).items():
                    name = next((title for mark, title in NAMES.items() if mark in words), "")
                    with suppress(OSError, KeyError):
                        if name:
                            now[name] = memory_of(process)
                for name, found in now.items():
                    most[name] = max(most[name], found, key=lambda pair: pair[1])
                total = tuple(map(sum, zip(*now.values(), strict=True))) if now else (0, 0)
                whole = max(whole, total, key=lambda pair: pair[1])
                time.sleep(0.3)
            print(f"rounds done: {len(deployment.lines())}")
        finally:
            deployment.close()
    print("process        RSS MB  PSS MB   (each at its largest)")
    for name, (rss, pss) in sorted(most.items(), key=lambda item: -item[1][1]):
        print(f"{name:12} {rss / 1000:8.0f} {pss / 1000:7.0f}")
    print(f"{'all at once':12} {whole[0] / 1000:8.0f} {whole[1] / 1000:7.0f}")


if __name__ == "__main__":
    main()
