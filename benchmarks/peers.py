"""fedwidth, a hand-written loop, Apple's pfl and Flower's simulation on one workload, interleaved.

    python benchmarks/peers.py [--rounds 20] [--repeats 3] [--limit 300] [--out peers.json] [--only plain,pfl]

pfl and Flower each get an environment of their own, made on first use in --environments (default: in the user's cache
folder) with the PyTorch that runs this script. The scripts they run lie in benchmarks/peers/. Before anything is timed,
all of them train a few rounds in double precision: their models must agree, so it is the same work. A run that fails,
or does not end within --limit seconds, is left out, and it is said why.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE / "peers"
sys.path[:0] = [str(SCRIPTS), str(HERE.parent / "src")]

import torch  # noqa: E402
from watched import Failed, run_watched  # noqa: E402
from workload import CLASSES, CLIENTS, SAMPLES, TinyCnn, Workload  # noqa: E402

REQUIREMENTS = {"pfl": "pfl[pytorch]==0.6.0", "flower": "flwr[simulation]==1.41.0"}
ENGINES = ("serial", "processes:2", "cuda", "vectorised")
RUNS = ("plain", "plain-channels-last", "pfl", "pfl-2-threads", "flower", *(f"fedwidth-{engine}" for engine in ENGINES))
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
TOLERANCE = 1e-6
"""Largest difference of a weight after the rounds in double precision (pfl averages in single precision)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=float, default=300, help="seconds for one run of one of them (default 300)")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default=",".join(RUNS), help="comma-separated")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser.add_argument("--environments", type=Path, default=cache / "fedwidth-peers")
    arguments = parser.parse_args()
    runs = [name for name in RUNS if name in arguments.only.split(",")]
    pythons, failures = make_environments(arguments.environments, {peer_of(name) for name in runs})
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        make_workload(5, torch.float64).save(work / "double.pt")
        make_workload(arguments.rounds + 2, torch.float32).save(work / "single.pt")
        differences = compare(runs, pythons, work, failures, arguments.limit)
        runs = [name for name in runs if name not in failures]
        measured: dict[str, list[dict[str, float]]] = {name: [] for name in runs}
        for repeat in range(arguments.repeats):
            for name in [
                name for name in runs if name not in failures
            ]:  # A B C A B C …: what disturbs one disturbs all
                print(f"repetition {repeat + 1} of {arguments.repeats}: {name}", file=sys.stderr, flush=True)
                out = work / f"{name}-{repeat}"
                try:
                    record, _ = measure(name, pythons[peer_of(name)], work / "single.pt", out, arguments.limit)
                except Failed as error:
                    failures[name] = f"repetition {repeat + 1} {error}"
                else:
                    measured[name].append(record)
        runs = [name for name in runs if name not in failures]
        measured = {name: measured[name] for name in runs}
    record = {
        "torch": torch.__version__,
        "cores": len(os.sched_getaffinity(0)),
        "runs": {name: summary(name, measured, differences) for name in runs},
        "failures": failures,
        "repeats": measured,
    }
    show(record)
    if arguments.out:
        arguments.out.write_text(json.dumps(record, indent=2) + "\n")


def peer_of(name: str) -> str:
    """Which environment a run needs."""
    return name.split("-")[0]


def make_environments(folder: Path, wanted: set[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The interpreter of each peer, and why one could not be had."""
    pythons, failures = {"plain": sys.executable, "fedwidth": sys.executable}, {}
    version = torch.__version__.split("+")[0]
    for peer in sorted(wanted & set(REQUIREMENTS)):
        python = folder / peer / "bin" / "python"
        ready = folder / peer / "ready"
        if not ready.exists():
            print(f"making an environment for {peer} in {folder}", file=sys.stderr, flush=True)
            folder.mkdir(parents=True, exist_ok=True)
            constraint = folder / "constraint.txt"
            constraint.write_text(f"torch=={version}\n")
            install = [str(python), "-m", "pip", "install", "--quiet"]
            for command in (
                [sys.executable, "-m", "venv", str(folder / peer)],
                [*install, f"torch=={version}"],  # first, so that the peer pulls no other
                [*install, REQUIREMENTS[peer], "--constraint", str(constraint)],
            ):
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    failures[peer] = f"cannot be installed: {done.stderr.strip().splitlines()[-1]}"
                    break
            else:
                ready.touch()
        pythons[peer] = str(python)
    return pythons, failures


def make_workload(rounds: int, dtype: torch.dtype) -> Workload:
    """Random images; cohorts and orders are those fedwidth draws, and the others are told."""
    from fedwidth_workload import experiment

    from fedwidth.randomness import torch_generator
    from fedwidth.training.batches import batches

    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(CLIENTS * SAMPLES, 3, 32, 32, generator=generator, dtype=dtype)
    targets = torch.randint(CLASSES, (CLIENTS * SAMPLES,), generator=generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = TinyCnn().to(dtype)
    run = experiment(inputs, targets, rounds, model=model)
    cohorts = [[client for client, _ in run.cohort(number)] for number in range(rounds)]

    def order(number: int, client: int) -> torch.Tensor:
        drawn = torch_generator(run.settings.seed, "order", number, client)
        return torch.cat(list(batches(run.partition[client], run.settings.training, drawn)))

    orders = [torch.stack([order(number, client) for client in cohort]) for number, cohort in enumerate(cohorts)]
    return Workload(inputs, targets, torch.tensor(cohorts), torch.stack(orders), model.state_dict())


def compare(
    runs: list[str], pythons: dict[str, str], work: Path, failures: dict[str, str], limit: float
) -> dict[str, float]:
    """How far each final model is from the hand-written loop's, in double precision; a run that fails is left out."""
    try:
        _, expected = measure("plain", pythons["plain"], work / "double.pt", work / "expected", limit)
    except Failed as error:
        raise SystemExit(f"the hand-written loop, with which all are compared, {error}") from None
    differences = {}
    for name in runs:
        if peer_of(name) in failures:
            failures[name] = failures[peer_of(name)]
            continue
        try:
            _, found = measure(name, pythons[peer_of(name)], work / "double.pt", work / name, limit)
        except Failed as error:
            failures[name] = str(error)
            continue
        differences[name] = max(float((found[key] - expected[key]).abs().max()) for key in expected)
        if differences[name] > TOLERANCE:
            failures[name] = f"its final model differs by {differences[name]:.1e}: it is not the same work"
    return differences


def measure(
    name: str, python: str, file: Path, out: Path, limit: float
) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Run a script: seconds a round, of the start (to the end of the first round), peak memory, and its final model."""
    peer, _, rest = name.partition("-")
    command = [python, str(SCRIPTS / f"{peer}_workload.py"), str(file), str(out), "--began", str(time.time())]
    threads = rest[:1] if peer == "pfl" and rest else "1"
    command += ["--engine", rest] if peer == "fedwidth" else ["--threads", threads]
    command += ["--channels-last"] * name.endswith("channels-last")
    environment = {**os.environ, **QUIET, "OMP_NUM_THREADS": threads}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(SCRIPTS), *([str(HERE.parent / "src")] if peer == "fedwidth" else [])]
    )
    megabytes = run_watched(command, environment, limit)
    record = json.loads(out.with_suffix(".json").read_text())
    model = torch.load(out.with_suffix(".pt"), weights_only=True)
    return {
        "seconds": statistics.median(record["seconds"]),
        "start": record["start"],
        "peak_mb": megabytes,
    }, model


def summary(name: str, measured: dict[str, list[dict[str, float]]], differences: dict[str, float]) -> dict[str, float]:
    """Medians over the repetitions, and how often faster than each other run, repetition by repetition."""
    own = measured[name]
    faster = {
        other: statistics.median(b["seconds"] / a["seconds"] for a, b in zip(own, theirs, strict=True))
        for other, theirs in measured.items()
    }
    middle = {key: statistics.median(record[key] for record in own) for key in ("seconds", "start", "peak_mb")}
    return {**middle, "difference": differences[name], "times_as_fast_as": faster}


def show(record: dict) -> None:
    """Print the table."""
    runs = record["runs"]
    against = [name for name in ("plain", "plain-channels-last", "pfl", "pfl-2-threads", "flower") if name in runs]
    print(
        f"{'':24}{'s/round':>9}{'start s':>9}{'peak MB':>9}"
        + "".join(f"{'x ' + name:>22}" for name in against)
        + f"{'difference':>13}"
    )
    for name, row in runs.items():
        ratios = "".join(f"{row['times_as_fast_as'][other]:22.2f}" for other in against)
        print(
            f"{name:24}{row['seconds']:9.3f}{row['start']:9.1f}{row['peak_mb']:9.0f}{ratios}{row['difference']:13.1e}"
        )
    for name, reason in record["failures"].items():
        print(f"{name}: {reason}")


if __name__ == "__main__":
    main()
