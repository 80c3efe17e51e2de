"""Ranks are widths, measured: a language model of Ubuntu IRC, adapted to Shakespeare's roles at unequal ranks.

    python benchmarks/adapters.py train --text FOLDER --out RUNS     pre-trains, then all runs; goes on where it was
    python benchmarks/adapters.py memory --text FOLDER --out RUNS    memory of a client by rank
    python benchmarks/adapters.py record --out RUNS                  writes down the runs that are finished

The tables of docs/adapters.md and docs/results.md are made from that record by `reproduction/adapters.py`.

FOLDER holds ubuntu_irc.jsonl.gz and shakespeare_roles.jsonl.gz, one user a line: {"user": …, "text": [message, …]}.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from fedwidth.data.records import Data, Split
from fedwidth.data.sets.encode import TextOptions, UserText, encode
from fedwidth.data.sets.text import read_lines
from fedwidth.experiment import Experiment
from fedwidth.models import build
from fedwidth.settings import (
    AdapterSettings,
    DataSettings,
    DeviceSettings,
    EvaluationSettings,
    LocalSettings,
    MethodSettings,
    ModelSettings,
    ServerSettings,
    Settings,
    TrainingSettings,
)

MODEL = {"embedding": 128, "heads": 8, "head_size": 12, "hidden": 512, "layers": 3, "dropout": 0.0}
WORDS, LENGTH, ROLES, HOLDOUT, TESTED = 2000, 20, 100, 0.2, 5
STEPS, BATCH, RATE = 500, 16, 1e-3
"""Pre-training: steps of Adam, sequences in each, and the first learning rate, which falls to 0 along a cosine."""
ROUNDS, SEEDS, RANK, PER_ROUND = 20, (1, 2, 3), 16, 4
MIXED = "1:1 1/2:1 1/4:1 1/8:1 1/16:1"
RATES = (1e-3, 3e-3, 1e-2)
"""Learning rates of clients that are tried once, with the first run's rule and another seed, on validation samples."""
RESULTS = Path(__file__).parent.parent / "results" / "adapters.json"

RUNS: dict[str, dict[str, Any]] = {
    "units": {"method": "fedrolex"},
    "svd": {"method": "fedrolex", "average": "svd"},
    "residual": {"method": "fedrolex", "average": "residual"},
    "stack": {"method": "fedrolex", "average": "stack"},
    "a-frozen": {"method": "fedrolex", "local": "ffalora"},
    "only-full-rank": {"method": "fedit", "excluded": [1 / 2, 1 / 4, 1 / 8, 1 / 16]},
    "rank-1-for-all": {"method": "fedit", "rank": 1},
    "fedstack": {"method": "fedstack"},
    "hetlora": {"method": "hetlora", "outside": "drop"},
    "flexlora": {"method": "flexlora", "outside": "drop"},
    "flora": {"method": "flora", "outside": "drop"},
}
FIRST = 7
"""So many of them are run for all seeds before the others."""


def both_texts(folder: Path) -> tuple[Data, Data]:
    """Ubuntu IRC, and Shakespeare's roles that speak most, in one vocabulary: that of the training parts of both."""
    files = [folder / "ubuntu_irc.jsonl.gz", folder / "shakespeare_roles.jsonl.gz"]

    def read() -> Iterator[UserText]:
        named = ((str(place), text) for place, file in enumerate(files) for text in read_lines(file, HOLDOUT))
        return (UserText(f"{place} {text.user}", text.train, text.test) for place, text in named)

    found = encode("irc and roles", read, files, TextOptions(f"both, {HOLDOUT}", words=WORDS, length=LENGTH))
    users = sum(1 for _ in read_lines(files[0], HOLDOUT))
    irc = lambda split: split.users < users  # noqa: E731
    train, test = (take(split, irc(split)) for split in (found.train, found.test))
    spoken = torch.bincount(found.train.users[~irc(found.train)].long() - users)
    roles = spoken.argsort(descending=True, stable=True)[:ROLES] + users
    number = torch.full((int(found.train.users.max()) + 1,), -1, dtype=torch.int32)
    number[roles] = torch.arange(ROLES, dtype=torch.int32)
    parts = []
    for split in (found.train, found.test):
        own = take(split, number[split.users.long()] >= 0)
        parts.append(replace(own, users=number[own.users.long()]))
    tested = torch.cat([torch.nonzero(parts[1].users == role).flatten()[:TESTED] for role in range(ROLES)])
    few = take(parts[1], tested)
    return replace(found, name="irc", train=train, test=test), replace(found, name="roles", train=parts[0], test=few)


def take(split: Split, rows: Tensor) -> Split:
    """Some of the sequences, in memory."""
    return Split(split.inputs[rows].clone(), split.targets[rows].clone(), split.users[rows].clone())


def loss_on(model: nn.Module, split: Split, limit: int | None = None) -> float:
    """Mean cross entropy for each word, in nats."""
    total = words = 0.0
    model.eval()
    with torch.no_grad():
        for start in range(0, min(limit or len(split), len(split)), 500):
            inputs, targets = split.inputs[start : start + 500].long(), split.targets[start : start + 500].long()
            logits = model(inputs).flatten(0, 1)
            total += float(functional.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="sum"))
            words += int((targets != -100).sum())
    return total / words


def pretrain(irc: Data, roles: Data, out: Path) -> Path:
    """The language model of Ubuntu IRC, trained once, and what it says of both texts."""
    file = out / "base.safetensors"
    if file.exists():
        return file
    model = build("transformer", seed=7, vocabulary=irc.classes, **MODEL)
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    draws, began = torch.Generator().manual_seed(7), time.perf_counter()
    for step in range(STEPS):
        rows = torch.randint(len(irc.train), (BATCH,), generator=draws)
        inputs, targets = irc.train.inputs[rows].long(), irc.train.targets[rows].long()
        loss = functional.cross_entropy(model.train()(inputs).flatten(0, 1), targets.flatten(), ignore_index=-100)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 100 == 0:
            print(f"pre-training {step}/{STEPS}: {loss.item():.3f}, {time.perf_counter() - began:.0f} s", flush=True)
    facts = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "sequences": STEPS * BATCH,
        "loss_irc": loss_on(model, irc.test, 2000),
        "loss_roles": loss_on(model, roles.test),
    }
    (out / "base.json").write_text(json.dumps(facts, indent=2) + "\n")
    save_file(model.state_dict(), file)
    return file


def choose_rate(roles: Data, base: Path, out: Path) -> float:
    """The learning rate of all runs: the best after five rounds by a fiftieth of the training text."""
    file = out / "rate.json"
    if not file.exists():
        found = {}
        for rate in RATES:
            wanted = settings_of("units", 0, base, rate)
            data, evaluation = replace(wanted.data, validation=0.02), replace(wanted.evaluation, test=False)
            wanted = replace(wanted, rounds=5, data=data, evaluation=evaluation)
            found[rate] = Experiment(wanted, data=roles).run().metrics[-1]["validation_loss"]
            print(f"learning rate {rate}: {found[rate]:.4f}", flush=True)
        file.write_text(json.dumps({"tried": found, "taken": min(found, key=lambda rate: found[rate])}) + "\n")
    return float(json.loads(file.read_text())["taken"])


def settings_of(name: str, seed: int, base: Path, rate: float) -> Settings:
    """The settings of a run: all but what its rule says are the same."""
    wanted = {"rank": RANK, "average": "units", "outside": "freeze", "local": "", "excluded": [], **RUNS[name]}
    return Settings(
        name=name,
        seed=seed,
        rounds=ROUNDS,
        engine="serial",
        method=MethodSettings(wanted["method"]),
        local=LocalSettings(wanted["local"]),
        model=ModelSettings("transformer", dict(MODEL), weights=str(base)),
        adapter=AdapterSettings(
            rank=wanted["rank"],
            targets="layers.*",
            outside=wanted["outside"],
            average=wanted["average"],
        ),
        data=DataSettings("digits", clients=ROLES, partition="natural"),
        devices=DeviceSettings(MIXED, per_round=PER_ROUND, excluded=wanted["excluded"]),
        training=TrainingSettings(
            optimiser="adam", lr=rate, weight_decay=0.0, batch_size=4, steps=3, mask="none", clip=1.0
        ),
        server=ServerSettings(label_rows=False),
        evaluation=EvaluationSettings(every=ROUNDS, local=False),
        checkpoint_seconds=20.0,
    )


def train(text: Path, out: Path, rounds: int = ROUNDS, only: str = "") -> None:
    """Every run, seed by seed; what is finished is left alone, what was stopped goes on."""
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    irc, roles = both_texts(text)
    base = pretrain(irc, roles, out)
    rate = choose_rate(roles, base, out)
    asked, others = list(RUNS)[:FIRST], list(RUNS)[FIRST:]
    for seed, name in [(seed, name) for names in (asked, others) for seed in SEEDS for name in names]:
        folder = out / f"{name}-{seed}"
        if (folder / "summary.json").exists() or (only and name not in only.split(",")):
            continue
        began = time.perf_counter()
        experiment = Experiment(replace(settings_of(name, seed, base, rate), rounds=rounds), data=roles)
        result = experiment.run(folder, resume=folder.exists())
        last = result.metrics[-1]
        print(f"{name} {seed}: {last}, {time.perf_counter() - began:.0f} s", flush=True)


def measure_memory(text: Path, out: Path, batch: int = 32) -> None:
    """What training one client at each rank takes at its peak, by PyTorch's own account of what is taken and freed."""
    torch.set_num_threads(1)
    _, roles = both_texts(text)
    settings = settings_of("units", 1, out / "base.safetensors", RATES[0])
    training = replace(settings.training, batch_size=batch, steps=1)
    experiment = Experiment(replace(settings, rounds=1, training=training), data=roles)
    found = {}
    for rank in (16, 8, 4, 2, 1):
        (task,) = experiment.rounds.assign(experiment.first_server(), [(0, rank / RANK)])
        cost, sub = experiment.costs.of(task), task.part.cut(experiment.first_state, experiment.plan)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
            experiment.trainer.train(sub, task, 0)
        found[rank] = {
            "batch": batch,
            "peak_mib": peak(watched) / 2**20,
            "trained_mib": cost.trained_bytes / 2**20,
            "frozen_mib": cost.frozen_bytes / 2**20,
            "activations_mib": batch * cost.activation_bytes / 2**20,
            "memory_mib": cost.memory(batch=batch, moments=2) / 2**20,
        }
        print(rank, found[rank], flush=True)
    (out / "memory.json").write_text(json.dumps(found, indent=2) + "\n")


def peak(watched: profile) -> int:
    """The most bytes that were held at once while it was watched, beside those held before."""
    results = watched.profiler.kineto_results
    events = sorted((event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]")
    held = most = 0
    for _, size in events:
        held += size
        most = max(most, held)
    return most


def record(out: Path) -> None:
    """Write down the finished runs: losses, errors, ranks and bytes, round by round."""
    runs = []
    for folder in sorted(out.iterdir()):
        if not (folder / "summary.json").exists():
            continue
        name, _, seed = folder.name.rpartition("-")
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        measured = [line for line in lines if "global_loss" in line]
        runs.append(
            {
                "run": name,
                "seed": int(seed),
                "rounds": [line["round"] for line in measured],
                "loss": [line["global_loss"] for line in measured],
                "effective_rank": [line["adapters"]["effective_rank"] for line in lines],
                "error": [line["adapters"]["error"] for line in lines],
                "bytes_up": sum(line["bytes_up"] for line in lines),
                "bytes_down": sum(line["bytes_down"] for line in lines),
            }
        )
    base = json.loads((out / "base.json").read_text()) | {"rate": json.loads((out / "rate.json").read_text())}
    memory = json.loads((out / "memory.json").read_text()) if (out / "memory.json").exists() else {}
    RESULTS.write_text(json.dumps({"base": base, "memory": memory, "runs": runs}) + "\n")


def main() -> None:
    """Do what is asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "memory", "record"])
    parser.add_argument("--text", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    if given.what == "train":
        train(given.text, given.out, given.rounds, given.only)
    elif given.what == "memory":
        measure_memory(given.text, given.out)
    else:
        record(given.out)


if __name__ == "__main__":
    main()
