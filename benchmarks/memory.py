"""Predicted and measured peak memory of training: every model in a fresh process, its growth beside `peak_of_step`.

    python benchmarks/memory.py [--device cuda [--jobs 8]] [--precision bf16] [--only resnet] [--quick] [--out FILE]

Each case trains one client for three steps as a device does (`Trainer.train`, one thread, an allocator that gives back
what is freed; `--keep` for one that does not). On the processor the growth is that of the process's resident memory,
from before the sub-model arrives to its highest; on a GPU it is `torch.cuda.max_memory_allocated`. The models are those
of the catalogue and of the zoo of the tests, at sizes at which they take hundreds of megabytes. Goal where the peak
exceeds 200 MB: within 15 % on the processor, 10 % on a GPU. A GPU counts what each process takes, so `--jobs` of them
may run at once.

The peak of the first step stands beside that of the later ones: what only the first one takes is setting up, not
training.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1] / "tests"
SMALLEST = 200e6
STEPS = 3


@dataclass(frozen=True)
class Case:
    """A model, what it reads, and with how many samples at a time."""

    make: Callable[[], Any]
    shape: tuple[int, ...]
    batch: int
    classes: int = 10
    words: bool = False
    """Whether it reads words, and predicts one for each."""
    capacities: tuple[float, ...] = (1.0, 0.5)


def cases() -> dict[str, Case]:
    """The cases by name."""
    from torch import nn

    from fedwidth.models import build
    from zoo.convolutional import MLP, DenseNet, FlatCNN, ShuffleNet, SqueezeExcite, UNet
    from zoo.residual import ConvNeXt, MobileNetV2, PreResNet18, ResNet, ResNeXt, group_norm
    from zoo.sequences import Recurrent, TiedLM, TorchTransformer, ViT

    image = (3, 32, 32)
    words = {"classes": 50, "words": True}
    return {
        "catalogue mlp": Case(lambda: build("mlp", data_shape=image, hidden=[4096, 4096]), image, 256),
        "catalogue cnn": Case(lambda: build("cnn", data_shape=image), image, 256),
        "catalogue lenet": Case(lambda: build("lenet", data_shape=image), image, 2048),
        "catalogue preresnet18": Case(lambda: build("preresnet18"), image, 128),
        "catalogue transformer": Case(
            lambda: build("transformer", vocabulary=10_004), (20,), 64, classes=10_004, words=True
        ),
        "mlp": Case(lambda: MLP(4096, 4096), (3, 4, 4), 512),
        "cnn": Case(lambda: FlatCNN(64, 128, 512), (3, 8, 8), 2048),
        "resnet-bn": Case(lambda: ResNet(64), image, 64),
        "resnet-gn": Case(lambda: ResNet(64, group_norm(8)), image, 64),
        "preresnet18": Case(lambda: PreResNet18(64), image, 64),
        "mobilenetv2": Case(lambda: MobileNetV2(16), image, 128),
        "resnext": Case(lambda: ResNeXt(128, 8), image, 64),
        "shufflenet": Case(lambda: ShuffleNet(64, 128, 4), image, 128),
        "densenet": Case(lambda: DenseNet(24), image, 128),
        "unet": Case(lambda: UNet(64), image, 64, words=True),
        "squeeze-excite": Case(lambda: SqueezeExcite(128), image, 128),
        "convnext": Case(lambda: ConvNeXt(64), image, 128),
        "vit": Case(lambda: ViT(256, 4, 64, 1024), (3, 8, 8), 1024),
        "transformer-encoder": Case(lambda: TorchTransformer(256, 4, 1024), (64,), 128, **words),
        "tied-lm": Case(lambda: TiedLM(256, 4, 1024, 64), (9,), 512, **words),
        "lstm": Case(lambda: Recurrent(nn.LSTM, 256, 512), (64,), 128, **words),
        "lstm, both ways": Case(lambda: Recurrent(nn.LSTM, 512, 256, both_ways=True), (128,), 64, **words),
        "gru": Case(lambda: Recurrent(nn.GRU, 256, 512), (64,), 128, **words),
    }


def inputs_of(case: Case, samples: int) -> Any:
    import torch

    if case.words and len(case.shape) == 1:
        return torch.randint(0, case.classes, (samples, *case.shape))
    return torch.randn(samples, *case.shape)


def measure(
    name: str, capacity: float, device: str, optimiser: str, given_back: bool, precision: str
) -> dict[str, Any]:
    """Predict and measure one case in this process."""
    import numpy as np
    import torch

    from fedwidth.core.narrow import skeleton
    from fedwidth.data import Partition, Shares, from_tensors
    from fedwidth.devices.memory import training_memory
    from fedwidth.gpu import set_precision
    from fedwidth.methods import method
    from fedwidth.plan import trace
    from fedwidth.settings import Settings, TrainingSettings
    from fedwidth.training.allocator import give_back_memory
    from fedwidth.training.client import Trainer

    torch.set_num_threads(1)
    case = cases()[name]
    inputs = inputs_of(case, STEPS * case.batch)
    with torch.no_grad():
        output = case.make()(inputs[:2])
    targets = torch.zeros(len(inputs), *output.shape[1:-1], dtype=torch.long)
    data = from_tensors(inputs, targets, inputs[:2], targets[:2], classes=output.shape[-1])
    shares = Shares.of(np.zeros(len(inputs), dtype=np.int64), 1)
    partition = Partition("one client", shares, shares, data.train.targets)
    training = TrainingSettings(batch_size=case.batch, optimiser=optimiser, scaler=False, mask="none")
    settings = Settings(training=training, precision=precision)
    plan = trace(case.make(), inputs[:2])
    with torch.device("meta"):
        model = case.make()
    where = torch.device(device)
    if where.type == "cuda":
        set_precision(precision)
        data = data.to(where)
    trainer = Trainer(model, plan, data, partition, method("heterofl"), settings, device=where)
    task = trainer.method.assign(plan, [(0, capacity)], 0)[0]
    assert trainer.channels_last is not None  # found out by a pass of its own, which is none of the step's
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        predicted = training_memory(
            skeleton(model, plan, task.index.counts),
            inputs[:2],
            batch=case.batch,
            moments=2 if optimiser != "sgd" else 1,
            device=where,
            precision=precision,
        )
    playing = time.perf_counter() - began
    if given_back:
        give_back_memory()
    trim()
    forget_highest(where)
    before = torch.cuda.memory_allocated() if where.type == "cuda" else resident("VmRSS")
    held = dict([*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)])
    values = {
        tensor: torch.full(task.index.shapes[tensor], 0.01).to(own.dtype).to(where) for tensor, own in held.items()
    }
    peaks: list[int] = []
    plain_step = trainer._step

    def watched_step(*given: Any) -> Any:
        loss = plain_step(*given)
        peaks.append(highest(where) - before)
        forget_highest(where)
        return loss

    trainer._step = watched_step  # type: ignore[method-assign]
    began = time.perf_counter()
    trainer.train(values, task, 0)
    seconds = time.perf_counter() - began
    peaks.append(highest(where) - before)
    return {
        "base": before,
        "measured": max(peaks),
        "first step": peaks[0],
        "later steps": max(peaks[1:]),
        "predicted": predicted.growth,
        "seconds": seconds,
        "seconds of the play": playing,
        "warnings": [str(each.message) for each in warned],
        **{f"part {key}": value for key, value in predicted.parts.items()},
    }


def highest(where: Any) -> int:
    """The most memory that was taken since `forget_highest`, in bytes."""
    import torch

    if where.type == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
    return resident("VmHWM")


def forget_highest(where: Any) -> None:
    """The highest is from now on."""
    import torch

    if where.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")


def resident(key: str) -> int:
    """A line of what the system says of this process's memory, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def trim() -> None:
    """Give back what earlier work has left in the allocator."""
    import ctypes
    import gc

    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--precision", default="float32", choices=("float32", "bf16"))
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--optimiser", default="sgd", choices=("sgd", "adam"))
    parser.add_argument("--quick", action="store_true", help="full width only")
    parser.add_argument("--jobs", type=int, default=1, help="cases at once, on a GPU")
    parser.add_argument("--keep", action="store_true", help="let the allocator keep what is freed, as glibc does")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.jobs < 1 or (given.jobs > 1 and given.device == "cpu"):
        parser.error("--jobs is for a GPU: processes that share a processor's memory would disturb each other")
    sys.path.insert(0, str(TESTS))
    if given.case:
        name, capacity = given.case
        print(
            json.dumps(measure(name, float(capacity), given.device, given.optimiser, not given.keep, given.precision))
        )
        return
    command = [sys.executable, __file__, "--device", given.device, "--optimiser", given.optimiser]
    command += ["--precision", given.precision]
    command += ["--keep"] * given.keep

    def one(case: tuple[str, float]) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        own = [*command, "--case", case[0], str(case[1])]
        return subprocess.run(own, capture_output=True, text=True, env=environment, check=False)

    wanted = {
        (name, capacity): case
        for name, case in cases().items()
        if given.only in name
        for capacity in case.capacities[: 1 if given.quick else None]
    }
    rows: list[dict[str, Any]] = []
    print(f"{'model':24} {'width':>6} {'batch':>6} {'first':>9} {'later':>9} {'predicted':>9} {'off':>7}   (MB)")
    with ThreadPoolExecutor(given.jobs) as pool:
        for ((name, capacity), case), done in zip(wanted.items(), pool.map(one, wanted), strict=True):
            if done.returncode:
                print(f"{name:24} {capacity:6g} failed: {done.stderr.strip().splitlines()[-1]}", flush=True)
                continue
            found = json.loads(done.stdout.splitlines()[-1])
            off = found["predicted"] / found["measured"] - 1
            rows.append({"model": name, "capacity": capacity, "batch": case.batch, **found, "off": off})
            sizes = " ".join(f"{found[key] / 1e6:9.0f}" for key in ("first step", "later steps", "predicted"))
            small = " below 200 MB" if found["measured"] < SMALLEST else ""
            print(f"{name:24} {capacity:6g} {case.batch:6} {sizes} {off:+7.1%}{small}", flush=True)
            for warned in found["warnings"]:
                print(f"  {warned}", flush=True)
    large = [row for row in rows if row["measured"] >= SMALLEST]
    if large:
        worst = max(large, key=lambda row: abs(row["off"]))
        furthest = f"{worst['model']} at {worst['capacity']}: {worst['off']:+.1%}"
        print(f"{len(large)} above 200 MB; the furthest off is {furthest}")
    if given.out:
        given.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
