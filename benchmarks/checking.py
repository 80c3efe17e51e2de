"""`plan.check` of this tree against that of an older one, side by side: the same models, inputs and threads.

    git worktree add /tmp/old 9a33dee
    python benchmarks/checking.py --old /tmp/old

Each measurement runs in a process of its own, old and new in turn. Ratios are of processor seconds, which a busy
machine hardly changes; the seconds on the clock are printed beside them. The older tree checks in evaluation mode
alone, this one in both modes. bert-base is that of the transformers package, with random weights; wide_resnet50 is
written out here.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 (twice as wide as a ResNet's) and 1 x 1 convolutions, and a shortcut."""

    def __init__(self, before: int, inner: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, after, 1, bias=False), nn.BatchNorm2d(after)
        self.downsample = nn.Identity()
        if stride != 1 or before != after:
            shortcut = nn.Conv2d(before, after, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        return torch.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class WideResNet50(nn.Module):
    """Zagoruyko and Komodakis, as torchvision has it: 68.9 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks, before = [], 64
        for stage, count in enumerate((3, 4, 6, 3)):
            inner, after = 128 * 2**stage, 256 * 2**stage
            for number in range(count):
                blocks.append(Bottleneck(before, inner, after, 2 if number == 0 and stage else 1))
                before = after
        self.blocks, self.fc = nn.Sequential(*blocks), nn.Linear(before, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.fc(self.blocks(self.pool(self.stem(x))).mean((2, 3)))


def bert_base() -> tuple[nn.Module, Any, Any]:
    from transformers import BertConfig, BertForSequenceClassification

    words = torch.randint(0, 30000, (2, 16), generator=torch.Generator().manual_seed(0))
    return BertForSequenceClassification(BertConfig()), {"input_ids": words}, lambda result: result.logits


def wide_resnet50() -> tuple[nn.Module, Any, Any]:
    return WideResNet50(), torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0)), None


MODELS = {"bert_base": bert_base, "wide_resnet50": wide_resnet50}


def measure(name: str) -> None:
    """Print the seconds that checking takes in this process."""
    import fedwidth

    torch.manual_seed(0)
    model, inputs, output = MODELS[name]()
    plan = fedwidth.trace(model, inputs, output=output)
    begin, started = time.process_time(), time.perf_counter()
    plan.check(model, inputs, output=output)
    processor, clock = time.process_time() - begin, time.perf_counter() - started
    print(json.dumps({"processor": processor, "clock": clock, "groups": len(plan.groups)}))


def run(tree: Path, name: str, threads: int) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, __file__, "--measure", name]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(found.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--old", type=Path, help="a checkout of the older commit")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a file to write the results to, as JSON")
    parser.add_argument("--measure", choices=list(MODELS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        measure(given.measure)
        return
    if given.old is None:
        parser.error("--old says where the older tree is")
    new = Path(__file__).resolve().parent.parent
    results = {}
    for name in given.models:
        seconds: dict[str, list[float]] = {"old": [], "new": []}
        for _ in range(given.repeats):
            for which, tree in (("old", given.old), ("new", new)):
                found = run(tree, name, given.threads)
                seconds[which].append(found["processor"])
                print(f"{name} {which}: {found['processor']:.1f} s ({found['clock']:.1f} s by the clock)", flush=True)
        ratios = [old / new for old, new in zip(seconds["old"], seconds["new"], strict=True)]
        results[name] = {**seconds, "groups": found["groups"], "ratios": ratios}
        shown = f"{median(ratios):.1f} times as fast ({min(ratios):.1f} to {max(ratios):.1f})"
        print(f"{name}: {found['groups']} groups, {shown}", flush=True)
    if given.out:
        given.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
