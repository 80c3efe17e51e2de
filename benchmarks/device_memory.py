"""What a device's processes take of memory: a real deployment on this machine, measured while it trains.

    python benchmarks/device_memory.py [--rounds 3]

The resident memory of each process at its largest, and what all of one device's processes take at once: what each has
to itself, and every page of a file that several of them map (programs, libraries) once. The sum of resident memories
counts such pages several times. Linux only. Needs the environment of `make test-flower`.
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
    "device.py": "device.py",
    "node.trainer": "trainer",
    "supernode.py": "SuperNode",
    "superexec": "SuperExec",
    "clientapp": "ClientApp",
}


def memory_of(process: int) -> tuple[int, int, dict[str, int]]:
    """In kB: resident memory, what of it is the process's own, and by the name of a file what it maps of it clean."""
    resident = own = 0
    clean: dict[str, int] = defaultdict(int)
    name = ""
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            name = words[5] if len(words) > 5 and words[5].startswith("/") else ""
        elif words[0] == "Rss:":
            resident += (kilobytes := int(words[1]))
            clean[name] += kilobytes
        elif words[0] == "Anonymous:":  # written to, so no other process shares it
            own += int(words[1])
            clean[name] -= int(words[1])
    clean.pop("", None)
    return resident, own, clean


def together(found: Iterable[tuple[int, int, dict[str, int]]]) -> int:
    """What processes take at once, with pages of files that several of them map counted once."""
    files: dict[str, int] = defaultdict(int)
    own = 0
    for _, private, clean in found:
        own += private
        for name, kilobytes in clean.items():
            files[name] = max(files[name], kilobytes)
    return own + sum(files.values())


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rounds", type=int, default=3)
    rounds = arguments.parse_args().rounds
    recipe = RECIPE.replace("rounds = 3", f"rounds = {rounds}").replace("data.clients = 6", "data.clients = 2")
    recipe = recipe.replace("devices.per_round = 3", "devices.per_round = 2").replace('"a1-b1-c1"', '"a1"')
    most: dict[str, int] = defaultdict(int)
    whole = summed = 0
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
                now: dict[str, tuple[int, int, dict[str, int]]] = {}
                for process, words in deployment.family(0).items():
                    name = next((title for mark, title in NAMES.items() if mark in words), "")
                    with suppress(OSError, KeyError):
                        if name:
                            now[name] = memory_of(process)
                for name, found in now.items():
                    most[name] = max(most[name], found[0])
                if (total := together(now.values())) > whole:
                    whole, summed = total, sum(resident for resident, _, _ in now.values())
                time.sleep(0.3)
            print(f"rounds done: {len(deployment.lines())}")
        finally:
            deployment.close()
    print("resident memory at its largest, MB")
    for name, resident in sorted(most.items(), key=lambda item: -item[1]):
        print(f"{name:12} {resident / 1000:6.0f}")
    print(
        f"all at once: {whole / 1000:.0f} MB, pages that they share counted once; {summed / 1000:.0f} MB as a plain sum"
    )


if __name__ == "__main__":
    main()
