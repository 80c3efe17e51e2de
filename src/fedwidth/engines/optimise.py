"""SGD, Adam and AdamW with PyTorch's arithmetic, on one vector [n] or on many at once [clients, n]."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedwidth.settings import TrainingSettings


@dataclass
class Vectors:
    """What the optimiser works on; all keep their addresses, so that a step can be captured."""

    flat: Tensor
    gradient: Tensor
    first: Tensor
    second: Tensor
    steps: Tensor
    """Steps taken so far: one number, or [clients, 1]."""
    learning_rate: Tensor
    """One number, or [clients, 1]."""
    scratch: Tensor
    """Room for what is computed on the way: taking new memory in every step costs more than the arithmetic."""
    trainable: Tensor | None
    """1 for parameters, 0 for buffers, which weight decay must not move; None where all are parameters."""

    @classmethod
    def zeros(cls, shape: tuple[int, ...], trainable: Tensor, *, dtype: torch.dtype, device: torch.device) -> Vectors:
        """Fresh vectors of this shape ([n] or [clients, n])."""

        def zeros(*sizes: int) -> Tensor:
            return torch.zeros(sizes, dtype=dtype, device=device)

        each = (shape[0], 1) if len(shape) == 2 else ()
        return cls(
            flat=zeros(*shape),
            gradient=zeros(*shape),
            first=zeros(*shape),
            second=zeros(*shape),
            steps=zeros(*each),
            learning_rate=zeros(*each),
            scratch=zeros(*shape),
            trainable=None if bool(trainable.all()) else trainable,
        )

    def reset(self) -> None:
        """Forget the moments: every client starts with a fresh optimiser.

        And the gradient: nothing writes to its gaps, where clipping by a norm that is no number would leave one.
        """
        torch._foreach_zero_([self.gradient, self.first, self.second, self.steps])


def clip(vectors: Vectors, largest: float) -> None:
    """As torch.nn.utils.clip_grad_norm_: scale by clip / (norm + 1e-6) where that is below 1."""
    norm = torch.linalg.vector_norm(vectors.gradient, dim=-1, keepdim=vectors.gradient.dim() == 2)
    vectors.gradient.mul_((largest / (norm + 1e-6)).clamp(max=1.0))


def step(vectors: Vectors, settings: TrainingSettings) -> None:
    """One optimiser step in place."""
    flat, change, scratch = vectors.flat, vectors.gradient, vectors.scratch
    if settings.weight_decay:
        weights = flat if vectors.trainable is None else torch.mul(flat, vectors.trainable, out=scratch)
        if settings.optimiser == "adamw":
            flat.sub_(torch.mul(weights, vectors.learning_rate * settings.weight_decay, out=scratch))
        else:
            change.add_(weights, alpha=settings.weight_decay)
    if settings.optimiser == "sgd":
        if settings.momentum:
            change = vectors.first.mul_(settings.momentum).add_(change)
        flat.addcmul_(change, vectors.learning_rate, value=-1.0)
        return
    vectors.steps.add_(1)
    vectors.first.lerp_(change, 0.1)
    vectors.second.mul_(0.999).addcmul_(change, change, value=0.001)
    first_bias = 1 - torch.exp(vectors.steps * math.log(0.9))
    second_bias = 1 - torch.exp(vectors.steps * math.log(0.999))
    torch.sqrt(vectors.second, out=scratch)
    scratch.mul_(second_bias.rsqrt()).add_(1e-8)
    torch.div(vectors.first, scratch, out=scratch)
    flat.sub_(scratch.mul_(vectors.learning_rate / first_bias))
