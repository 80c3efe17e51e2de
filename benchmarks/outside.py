"""Weights outside a client's slice, dropped (as everywhere here) or frozen: what each takes of a device's memory.

    python benchmarks/outside.py

`drop` is what `fedwidth fit` predicts of a sub-model. `freeze` holds the whole model, computes with all of it and
trains a slice of some width: the least that can take, with one copy of frozen weights and with gradients and moments of
the slice alone, beside the activations of the whole model. The last tensors alone are trained with all others frozen,
played as it is, less the second copy of what is frozen. Each is compared with the width that takes as much, dropped.
"""

from __future__ import annotations

import argparse
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fedwidth.core.cost import count_bytes
from fedwidth.core.narrow import skeleton
from fedwidth.devices.memory import cross_entropy, training_memory
from fedwidth.devices.peak import peak_of_step
from fedwidth.models import build, example_inputs
from fedwidth.plan import trace

CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "cnn, 8 x 8": ("cnn", {"data_shape": (1, 8, 8), "widths": [16, 32, 64]}, 16),
    "cnn, 28 x 28": ("cnn", {}, 32),
    "mlp, 2 x 4096": ("mlp", {"data_shape": (3, 32, 32), "hidden": [4096, 4096]}, 32),
    "preresnet18": ("preresnet18", {}, 32),
    "transformer": ("transformer", {}, 32),
}
WIDTHS = [number / 64 for number in range(1, 65)]
MEGA = 1e6


@dataclass
class Outside:
    """The memory of one model, in bytes without the process's own."""

    name: str
    options: dict[str, Any]
    batch: int

    def __post_init__(self) -> None:
        self.model = build(self.name, **self.options)
        self.example = example_inputs(self.name, data_shape=self.options.get("data_shape"))
        self.plan = trace(self.model, self.example)
        self.parameters = dict(self.model.named_parameters())
        self.weights = count_bytes(self.plan, {}, self.parameters)
        self.peak = peak_of_step(skeleton(self.model, self.plan, {}), self.example, self.batch, cross_entropy)

    def slice(self, width: float) -> int:
        """Bytes of the weights of a slice."""
        return count_bytes(self.plan, self.plan.counts(width), self.parameters)

    def drop(self, width: float) -> float:
        """What training a sub-model takes."""
        made = skeleton(self.model, self.plan, self.plan.counts(width))
        return training_memory(made, self.example, batch=self.batch).growth

    def freeze(self, width: float) -> float:
        """The least that training a slice inside the whole model takes."""
        own = self.slice(width)
        step = max(self.peak.step - (self.weights - own), 0)
        return self.weights + own + own + step  # as received, the trained copy, momentum, the step

    def last(self, tensors: int) -> tuple[float, float]:
        """What training the last so many tensors takes, and which share of the weights they are."""
        made = skeleton(self.model, self.plan, {})
        for number, parameter in enumerate(made.parameters()):
            parameter.requires_grad_(number >= len(self.parameters) - tensors)
        trained = sum(p.numel() * p.element_size() for p in made.parameters() if p.requires_grad)
        found = training_memory(made, self.example, batch=self.batch)
        return found.growth - (self.weights - trained), trained / self.weights


def widest(limit: float, memory: Callable[[float], float]) -> float:
    """The widest width whose memory is within a limit; 0 where none is. Wider takes more, so it is found by halving."""
    fitting = bisect_right(WIDTHS, limit, key=memory)
    return WIDTHS[fitting - 1] if fitting else 0.0


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    print(f"{'model':16} {'full':>7} {'drop 1/2':>9} {'drop 1/4':>9} {'freeze 1/2':>11} {'freeze 1/16':>12}   (MB)")
    for title, (name, options, batch) in CASES.items():
        found = Outside(name, options, batch)
        sizes = [found.drop(1.0), found.drop(0.5), found.drop(0.25), found.freeze(0.5), found.freeze(1 / 16)]
        shown = [f"{size / MEGA:.1f}" for size in sizes]
        print(f"{title:16} {shown[0]:>7} {shown[1]:>9} {shown[2]:>9} {shown[3]:>11} {shown[4]:>12}")
        equal = [widest(found.freeze(width), found.drop) for width in (0.5, 1 / 16)]
        print(f"{'':16} as much as freeze 1/2 takes drop {equal[0]:.2f}, and as freeze 1/16 drop {equal[1]:.2f}")
        by_number = [found.last(number) for number in range(1, len(found.parameters) + 1)]
        for width in (0.5, 0.25):
            fitting = [share for size, share in by_number if size <= found.drop(width)]
            own = found.slice(width) / found.weights
            said = f"the last {max(fitting):.1%} of the weights" if fitting else "no tensor alone"
            print(f"{'':16} within the memory of drop {width:g} ({own:.1%} of the weights): {said}")


if __name__ == "__main__":
    main()
