"""What a device's processes take of memory: a real deployment on this machine, measured while it trains.

    python benchmarks/device_memory.py [--rounds 3]

The resident memory of each process at its largest, and what all of one device's processes take at once, with every page
that several of them have in common counted once, as the system's own limits for a group of processes do: of written
memory each process's share, `Pss_Anon` of /proc/…/smaps_rollup, which nobody but the device's forks shares; of every
file (programs, libraries) what the process that maps most of it maps. (`Pss` would divide the pages of libraries among
this machine's other devices and its server, too, which a device does not have.) Linux only. Needs the environment of
`make test-flower`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "flower")]

from loopback import Loopback  # noqa: E402

from small_runs import RECIPE  # noqa: E402

NAMES = {
    "flower-superexe": "SuperExec",
    "flwr-clientapp": "ClientApp",
    "fedwidth-forks": "fork server",
    "node.trainer": "trainer",
    "device.py": "device.py",
    "supernode.py": "SuperNode",
}
"""What is in the name or the command line of each process."""
MB = 1024 / 1e6
"""A KiB in MB."""

Memory = tuple[int, int, dict[str, int]]
"""In KiB: resident memory, the process's share of what was written, and by the name of a file what it maps clean."""


def memory_of(process: int) -> Memory:
    """What a process takes now."""
    resident, name = 0, ""
    clean: dict[str, int] = defaultdict(int)
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            name = words[5] if len(words) > 5 and words[5].startswith("/") else ""
        elif words[0] == "Rss:":
            resident += (kibibytes := int(words[1]))
            clean[name] += kibibytes
        elif words[0] == "Anonymous:":
            clean[name] -= int(words[1])
    clean.pop("", None)
    rollup = dict(line.split(":", 1) for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:])
    return resident, int(rollup["Pss_Anon"].split()[0]), clean


def name_of(process: int, words: str) -> str:
    """What a process of a device is, by its own name or its command line."""
    own = Path(f"/proc/{process}/comm").read_text()
    return next((title for mark, title in NAMES.items() if mark in own or mark in words), "another")


def together(found: Iterable[Memory]) -> int:
    """What processes take at once, with pages that several of them have in common counted once."""
    files: dict[str, int] = defaultdict(int)
    written = 0
    for _, share, clean in found:
        written += share
        for name, kibibytes in clean.items():
            files[name] = max(files[name], kibibytes)
    return written + sum(files.values())


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rounds", type=int, default=3)
    rounds = arguments.parse_args().rounds
    recipe = RECIPE.replace("rounds = 3", f"rounds = {rounds}").replace("data.clients = 6", "data.clients = 2")
    recipe = recipe.replace("devices.per_round = 3", "devices.per_round = 2").replace('"a1-b1-c1"', '"a1"')
    most: dict[str, int] = defaultdict(int)
    whole = summed = 0
    shares: dict[str, int] = {}
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
                now: list[tuple[str, Memory]] = []
                for process, words in deployment.family(0).items():
                    with suppress(OSError, KeyError):
                        now.append((name_of(process, words), memory_of(process)))
                for name, found in now:
                    most[name] = max(most[name], found[0])
                if (total := together(found for _, found in now)) > whole:
                    whole, summed = total, sum(resident for _, (resident, _, _) in now)
                    shares = {name: share for name, (_, share, _) in now}
                time.sleep(0.3)
            print(f"rounds done: {len(deployment.lines())}")
        finally:
            deployment.close()
    print("MB: resident memory at its largest, and its share of written memory when all together took most")
    for name, resident in sorted(most.items(), key=lambda item: -item[1]):
        print(f"{name:15} {resident * MB:6.0f} {shares.get(name, 0) * MB:6.0f}")
    print(f"all at once: {whole * MB:.0f} MB, common pages counted once; {summed * MB:.0f} MB as a plain sum")


if __name__ == "__main__":
    main()
