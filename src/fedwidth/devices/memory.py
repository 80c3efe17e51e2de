"""What training a sub-model takes of a device's memory, part by part, before anything is trained.

On a GPU it is the GPU's memory alone: that of PyTorch's tensors and workspaces, without the driver's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from fedwidth.devices.kernels import block_of
from fedwidth.devices.peak import peak_of_step

RUNTIME_BASE = 250e6
"""Bytes that a process takes with Python, PyTorch and fedwidth imported and one small step done, before any model:
measured on Linux with PyTorch 2.13 for processors (242 MB), and rounded up."""


@dataclass(frozen=True)
class Memory:
    """Bytes that training takes at its peak."""

    received: float
    """The sub-model as it arrived, which is kept until the answer is sent."""
    parameters: float
    """The sub-model that is trained, buffers included."""
    optimiser: float
    """Moments: none for plain SGD, one with momentum, two and scratch for Adam."""
    step: float
    """Activations, gradients and what kernels take beside, at the highest point of a step."""
    base: float = RUNTIME_BASE
    """What the process takes without any model; on a GPU nothing is counted."""

    @property
    def growth(self) -> float:
        """All but the base."""
        return self.received + self.parameters + self.optimiser + self.step

    @property
    def total(self) -> float:
        """What the process takes; on a GPU, of its memory."""
        return self.base + self.growth

    @property
    def parts(self) -> Mapping[str, float]:
        """The parts by name."""
        return {
            "received": self.received,
            "parameters": self.parameters,
            "optimiser": self.optimiser,
            "step": self.step,
        }


def training_memory(
    module: nn.Module,
    example_inputs: Any,
    *,
    batch: int,
    moments: int = 1,
    loss: Callable[[Any], Tensor] | None = None,
    base: float | None = None,
    device: str | torch.device = "cpu",
    precision: str = "tf32",
) -> Memory:
    """What training a module takes with batches of so many samples; its values do not matter, and are forgotten.

    `moments` are those of the optimiser (SGD 0 or 1, Adam 2). Without a `loss` it is cross entropy over the last axis
    of the output. On a GPU (`device="cuda"`, which must be there: its kernels are asked) it is the GPU's memory, with
    the `precision` of training (`Settings.precision`). `base` is what is taken without a model: on a processor that
    of a process, on a GPU nothing.
    """
    where = torch.device(device)
    size_of = _size if where.type == "cpu" else _blocks
    held = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}.values()
    size = sum(map(size_of, held))
    trained = sum(size_of(p) for p in module.parameters() if p.requires_grad)
    peak = peak_of_step(module, example_inputs, batch, loss or cross_entropy, device=where, precision=precision)
    stepping = peak.kept + peak.gradients + (trained if moments > 1 else 0)  # Adam's roots, beside the gradients
    if base is None:
        base = RUNTIME_BASE if where.type == "cpu" else 0.0
    return Memory(size, size, moments * trained, max(peak.step, stepping), base)


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _blocks(tensor: Tensor) -> int:
    return block_of(_size(tensor))


def cross_entropy(output: Any) -> Tensor:
    """Cross entropy of an output whose last axis is classes, with targets that do not matter."""
    tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    logits = tensors[0]
    targets = torch.zeros(logits.shape[:-1], dtype=torch.long, device=logits.device)
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())
