"""Data read as it is needed beside the same data in memory: peak memory and rounds a second, round by round in turns.

    python benchmarks/on_disk.py --gigabytes 2 --clients 10000

makes a file of pictures for each client (once, in --folder) and starts two processes that train the same run with the
serial engine. They take turns, one round each, so that whatever else the machine does slows both alike. Said are the
peak of each process's anonymous memory (RssAnon: what it holds itself, without files mapped into memory or cached by
the system), the seconds of a round, and whether both have the same state in the end, bit for bit. `--evaluate` adds an
evaluation after the last round, which passes through all data, for the statistics of the batch norms; `--only disk`
leaves the other process out.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from fedwidth.config.read import read_settings
from fedwidth.data import Data, from_clients
from fedwidth.engines import make_engine
from fedwidth.experiment import Experiment
from fedwidth.training.round import run_round

SHAPE, CLASSES = (3, 32, 32), 10
SAMPLE = int(np.prod(SHAPE))


class Pictures(Dataset[Any]):
    """The pictures of one client, in a file: a label and the pixels of each."""

    def __init__(self, path: Path, samples: int) -> None:
        self.path, self.samples = path, samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: list[int]) -> list[tuple[torch.Tensor, int]]:
        found = []
        with self.path.open("rb") as file:
            for number in numbers:
                file.seek(number * (SAMPLE + 1))
                row = np.frombuffer(bytearray(file.read(SAMPLE + 1)), np.uint8)
                found.append((torch.from_numpy(row[1:]).view(SHAPE), int(row[0])))
        return found


def write(folder: Path, clients: int, samples: int) -> None:
    """A file for each client, which has two labels."""
    folder.mkdir(parents=True, exist_ok=True)
    for client in range(clients):
        path = folder / f"{client:06}.bin"
        if path.exists() and path.stat().st_size == samples * (SAMPLE + 1):
            continue
        generator = np.random.default_rng(client)
        rows = generator.integers(0, 256, (samples, SAMPLE + 1), dtype=np.uint8)
        rows[:, 0] = (client + np.arange(samples) % 2) % CLASSES
        path.write_bytes(rows.tobytes())


def data_of(folder: Path, clients: int, samples: int, cache: int | None) -> Data:
    """The clients' files; the first hundred are what is tested on."""
    files = [Pictures(folder / f"{client:06}.bin", samples) for client in range(clients)]
    for client, pictures in enumerate(files):
        pictures.targets = ((client + np.arange(samples) % 2) % CLASSES).tolist()
    return from_clients(files, files[:100], cache=cache, kind="images", classes=CLASSES)


def watch_memory(peak: list[int]) -> None:
    """Keep the highest RssAnon seen, in bytes, looking a hundred times a second."""
    status = Path("/proc/self/status")
    while True:
        line = next(line for line in status.read_text().splitlines() if line.startswith("RssAnon"))
        peak[0] = max(peak[0], int(line.split()[1]) * 1024)
        time.sleep(0.01)


def child(options: argparse.Namespace) -> None:
    """Train a round for every line that comes in, and say what it took."""
    peak = [0]
    threading.Thread(target=watch_memory, args=(peak,), daemon=True).start()
    torch.set_num_threads(1)
    begun = time.perf_counter()
    cache = None if options.child == "memory" else options.cache
    data = data_of(Path(options.folder), options.clients, options.samples, cache)
    settings = read_settings("engine = 'serial'", options.set, main=True).main
    experiment = Experiment(settings, data=data)
    engine, server = make_engine(experiment.trainer), experiment.first_server()
    print(json.dumps({"loaded": time.perf_counter() - begun, "peak": peak[0]}), flush=True)
    for line in sys.stdin:
        before = time.perf_counter(), time.process_time()
        server, _, _ = run_round(experiment.rounds, server, experiment.cohort(server.round), engine)
        took = time.perf_counter() - before[0], time.process_time() - before[1]
        evaluation = time.perf_counter()
        if "evaluate" in line:
            experiment.evaluate(server)
        evaluation = time.perf_counter() - evaluation
        digest = hashlib.sha256(b"".join(t.contiguous().numpy().tobytes() for t in server.state.values()))
        said = {"seconds": took[0], "processor": took[1], "peak": peak[0], "state": digest.hexdigest()[:16]}
        print(json.dumps({**said, "evaluation": evaluation}), flush=True)


def talk(options: argparse.Namespace, kind: str) -> subprocess.Popen[str]:
    """A process that holds its data in memory, or reads it."""
    command = [sys.executable, __file__, *sys.argv[1:], "--child", kind, "--folder", options.folder]
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=here)


def ask(process: subprocess.Popen[str], line: str | None = None) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    if line is not None:
        process.stdin.write(line + "\n")
        process.stdin.flush()
    found = process.stdout.readline()
    if not found:
        raise SystemExit(f"the process ended with {process.wait()}")
    answer: dict[str, Any] = json.loads(found)
    return answer


def turns(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """What both processes say, round by round."""
    both = {kind: talk(options, kind) for kind in options.kinds}
    try:
        for kind, process in both.items():
            yield kind, ask(process)
        for number in range(options.rounds):
            last = "evaluate" if options.evaluate and number == options.rounds - 1 else "train"
            for kind in options.kinds if number % 2 else reversed(options.kinds):
                yield kind, ask(both[kind], last)
    finally:
        for process in both.values():
            process.terminate()
            process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=str(Path(tempfile.gettempdir()) / "fedwidth-on-disk"), help="of the files")
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=("memory", "disk"), help="one of the two processes")
    parser.add_argument("--evaluate", action="store_true", help="evaluate after the last round")
    parser.add_argument("--cache", type=int, default=64, help="MiB of samples that are held")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="settings of the run")
    parser.add_argument("--child", choices=("memory", "disk"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.kinds = [options.only] if options.only else ["memory", "disk"]
    options.samples = max(2, round(options.gigabytes * 1e9 / options.clients / (SAMPLE + 1)))
    options.set = [
        "model.name=cnn",
        "model.options={widths=[16,32]}",
        f"data.clients={options.clients}",
        "data.partition=natural",
        "devices.per_round=20",
        "devices.capacities=a1-b1-c1",
        "training.batch_size=16",
        "training.augment=false",
        "evaluation.local=false",
        *options.set,
    ]
    if options.child:
        child(options)
        return
    write(Path(options.folder), options.clients, options.samples)
    size = sum(entry.stat().st_size for entry in os.scandir(options.folder))
    print(f"{options.clients:,} clients of {options.samples} pictures, {size / 1e9:.2f} GB in {options.folder}")
    said: dict[str, list[dict[str, Any]]] = {kind: [] for kind in options.kinds}
    for kind, answer in turns(options):
        said[kind].append(answer)
        print(f"{kind:>6} {len(said[kind]) - 1}: {answer}", file=sys.stderr, flush=True)
    for kind, answers in said.items():
        rounds = answers[1:]
        print(
            f"{kind:>6}: ready after {answers[0]['loaded']:.1f} s,"
            f" {statistics.median(each['seconds'] for each in rounds):.3f} s a round"
            f" ({statistics.median(each['processor'] for each in rounds):.3f} s of processor),"
            f" peak anonymous memory {max(each['peak'] for each in answers) / 1e9:.2f} GB"
            + (f", evaluated in {rounds[-1]['evaluation']:.0f} s" if options.evaluate else "")
        )
    if options.only:
        return
    pairs = list(zip(said["memory"][1:], said["disk"][1:], strict=True))
    for name in ("seconds", "processor"):
        share = statistics.median(m[name] / d[name] for m, d in pairs)
        print(f"throughput from disk: {share:.3f} of that in memory ({name})")
    print(f"same state after {len(pairs)} rounds: {all(m['state'] == d['state'] for m, d in pairs)}")


if __name__ == "__main__":
    main()
