"""Engines side by side, in one run: a local step of ten clients, and whole rounds.

    python benchmarks/engines.py [--device cuda] [--rounds 20] [--out engines.json] [--only steps|rounds|profile]
    python benchmarks/engines.py --device cpu --model cnn --repeats 3      minutes and not hours, on a processor

Steps: PreResNet18, CIFAR shapes, 10 clients (two per width, or all of one), batch 10, SGD; and a small MLP. Rounds:
FedRolex, Adam, batch 128 and 10, one local epoch of 500 samples, as a run has them. Data are random images of CIFAR's
shape: speed does not depend on what they show.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from fedwidth.config.read import read_settings
from fedwidth.core.submodel import state_of
from fedwidth.data import Transform, from_tensors
from fedwidth.engines import make_engine
from fedwidth.engines.slots import pool as slots
from fedwidth.experiment import Experiment
from fedwidth.training.server.state import Server

TOML = """
rounds = 100000
[data]
clients = 100
partition = "labels"
partition_options = { per_client = 2 }
[devices]
capacities = "a1-b1-c1-d1-e1"
dynamic = true
[evaluation]
every = 100000
"""
WIDTHS = (1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125, 0.0625, 0.0625)


def images(samples: int = 50_000):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (samples, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.arange(samples) % 10
    transform = Transform((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), scale=255, padding=4, flip=True)
    return from_tensors(pixels, labels, pixels[:2000], labels[:2000], kind="images", transform=transform, name="random")


MODEL = ["model.name=preresnet18"]
"""What trains where nothing else is said; `--model` changes it."""


def experiment(data, device: str, engine: str, precision: str, *changes: str) -> Experiment:
    how = [f"device={device}", f"engine={engine}", f"precision={precision}"]
    settings = read_settings(TOML, [*MODEL, *how, *changes]).main
    return Experiment(settings, data=data)


def synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


class Steps:
    """One local step of ten clients with one engine: the difference between rounds of 21 and of 1 steps, by 20."""

    def __init__(self, data, device: str, engine: str, precision: str, widths: Sequence[float], *changes: str) -> None:
        self.device, self.clients = device, list(enumerate(widths))
        self.name, self.rounds = f"{engine} {precision}", {}
        for steps in (1, 21):
            ways = ["training.batch_size=10", f"training.steps={steps}", "training.lr=0.01", *changes]
            run = experiment(data, device, engine, precision, *ways)
            self.rounds[steps] = (run, make_engine(run.trainer), state_of(run.model))

    def round(self, steps: int, number: int) -> None:
        """One round of so many steps."""
        run, engine, state = self.rounds[steps]
        engine.run(state, run.method.assign(run.plan, self.clients, number), number)

    def milliseconds(self, number: int) -> float:
        """For one step."""
        seconds = {}
        for steps in (1, 21):
            synchronise(self.device)
            start = time.perf_counter()
            self.round(steps, number)
            synchronise(self.device)
            seconds[steps] = time.perf_counter() - start
        return 1000 * (seconds[21] - seconds[1]) / 20

    def close(self) -> None:
        """Give memory and workers back."""
        for _, engine, _ in self.rounds.values():
            engine.close()


def compare_steps(title: str, cases: Sequence[Steps], repeats: int) -> dict[str, dict[str, float]]:
    """Engines turn by turn in one process, so that what disturbs one disturbs all."""
    print(f"\n{title}: ms a step of all, median of {repeats} (least to most)", flush=True)
    for case in cases:
        for number in range(3):
            case.round(1, number)
            case.round(21, number)
    times: dict[str, list[float]] = {case.name: [] for case in cases}
    for number in range(repeats):
        for case in cases:
            times[case.name].append(case.milliseconds(3 + number))
    for case in cases:
        case.close()
    found = {n: {"median": statistics.median(t), "least": min(t), "most": max(t)} for n, t in times.items()}
    for name, ms in found.items():
        print(f"  {name:16} {ms['median']:9.2f}  ({ms['least']:.2f} to {ms['most']:.2f})", flush=True)
    return found


def steps_of(data, device: str, repeats: int) -> dict[str, object]:
    """The engines with ten clients of mixed widths, with many of one width, and with a small model."""
    on_gpu = device.startswith("cuda")
    plain = [("serial", "tf32"), ("vectorised", "tf32"), ("cuda", "tf32")]
    record: dict[str, object] = {}

    def compare(title: str, engines: Sequence[tuple[str, str]], widths: Sequence[float], *changes: str) -> None:
        own = (*changes, f"slots={len(widths)}")
        cases = [Steps(data, device, *engine, widths, *own) for engine in engines]
        record[title] = compare_steps(title, cases, repeats)

    others = [("vectorised", "bf16"), ("cuda", "bf16")] if on_gpu else [("processes", "tf32")]
    compare("ten clients", [*plain, *others], WIDTHS)
    mixed = record["ten clients"]
    print(f"cuda is {mixed['serial tf32']['median'] / mixed['cuda tf32']['median']:.1f} times serial")
    alike = [("vectorised", "bf16"), ("cuda", "bf16")] if on_gpu else plain[1:]
    for width in (1.0, 0.25, 0.0625):
        compare(f"ten clients of width {width:g}", alike, [width] * 10)
    if on_gpu:
        for clients, width in ((10, 0.125), (10, 0.0625), (60, 0.125), (60, 0.0625)):
            compare(
                f"{clients} clients of width {width:g}, batch 64", alike, [width] * clients, "training.batch_size=64"
            )
    mlp = ["model.name=mlp", "model.options={hidden=[128,32]}"]
    for clients in (10, 100):
        compare(f"{clients} clients, MLP of hidden layers 128 and 32", plain, WIDTHS * (clients // 10), *mlp)
    return record


PAPER = ["training.optimiser=adam", "training.lr=2e-4", "training.weight_decay=5e-4", "training.clip=1.0"]


def time_rounds(data, device: str, engine: str, precision: str, batch: int, rounds: int) -> dict[str, float]:
    """Seconds a round of a whole run, and on a GPU the share of it that is not local training."""
    warm = 12 if device.startswith("cuda") else 1
    changes = [*PAPER, f"training.batch_size={batch}", f"rounds={warm + rounds + 1}"]
    run = experiment(data, device, engine, precision, *changes)
    with training_spans() as spans:
        lines = run.run().metrics[:-1]  # the last round is evaluated
        synchronise(device)
    ends = [line["seconds"] for line in lines]
    times = [after - before for before, after in itertools.pairwise(ends)][-rounds:]
    record = {"seconds": statistics.median(times), "mean": statistics.mean(times)}
    if device.startswith("cuda"):
        record["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    if spans:
        trained = [start.elapsed_time(end) / 1000 for start, end in spans][-rounds - 1 : -1]
        record["training"] = statistics.median(trained)
        record["outside"] = 1 - sum(trained) / sum(times)
    return record


@contextmanager
def training_spans() -> Iterator[list[tuple[torch.cuda.Event, torch.cuda.Event]]]:
    """When the slots of the GPU began and ended to train, wave by wave."""
    spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
    if not torch.cuda.is_available():
        yield spans
        return
    train, join = slots.SlotPool._train_wave, slots.SlotPool._join

    def begin(pool, wave):
        spans.append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
        spans[-1][0].record()
        return train(pool, wave)

    def end(pool, wave):
        join(pool, wave)
        spans[-1][1].record()

    slots.SlotPool._train_wave, slots.SlotPool._join = begin, end
    try:
        yield spans
    finally:
        slots.SlotPool._train_wave, slots.SlotPool._join = train, join


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", choices=["steps", "rounds", "profile"])
    parser.add_argument("--model", default="preresnet18")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = arguments.device
    MODEL[:] = [f"model.name={arguments.model}"]
    hardware = torch.cuda.get_device_name() if device.startswith("cuda") else "CPU, one thread"
    torch.set_num_threads(1)
    data = images()
    record: dict[str, object] = {"hardware": hardware, "torch": torch.__version__, "model": arguments.model}
    if arguments.only in (None, "steps"):
        record["step_ms"] = steps_of(data, device, arguments.repeats)
    if arguments.only in (None, "rounds"):
        rounds = {}
        for batch in (128, 10):
            for engine, precision in (("cuda", "tf32"), ("cuda", "bf16"), ("serial", "tf32")):
                number = arguments.rounds if engine == "cuda" else 3
                name = f"batch {batch}, {engine} {precision}"
                rounds[name] = time_rounds(data, device, engine, precision, batch, number)
                shown = ", ".join(f"{part} {value:.3f}" for part, value in rounds[name].items())
                print(f"round, {name:22} {shown}", flush=True)
        record["rounds"] = rounds
    if arguments.only == "profile":
        profile(data, device)
    if arguments.out:
        arguments.out.write_text(json.dumps(record, indent=2) + "\n")


def profile(data, device: str) -> None:
    """Where the time of a round goes."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    run = experiment(data, device, "cuda", "bf16", *PAPER, "training.batch_size=128")
    trainer = make_engine(run.trainer)
    server = Server(state_of(run.model))
    parts: dict[str, float] = {}

    def lap(name: str, start: float) -> float:
        synchronise(device)
        now = time.perf_counter()
        parts[name] = parts.get(name, 0.0) + now - start
        return now

    for number in range(30):
        if number == 15:
            parts.clear()
        synchronise(device)
        clock = time.perf_counter()
        tasks = run.method.assign(run.plan, run.cohort(number), number)
        clock = lap("choose", clock)
        sums, _ = trainer.run(server.state, tasks, number)
        clock = lap("engine", clock)
        aggregate = run.method.aggregate(server.state, sums, run.plan)
        clock = lap("aggregate", clock)
        server = server.advance(aggregate, None, run.settings.server, run.plan.parameters)
        clock = lap("advance", clock)
    print({name: f"{1000 * spent / 15:.1f} ms" for name, spent in parts.items()})
    tasks = run.method.assign(run.plan, run.cohort(31), 31)
    with record(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        trainer.run(server.state, tasks, 31)
        synchronise(device)
    print(found.key_averages().table(sort_by="self_cpu_time_total", row_limit=14, max_name_column_width=50))
    print(found.key_averages().table(sort_by="self_cuda_time_total", row_limit=14, max_name_column_width=50))


if __name__ == "__main__":
    main()
