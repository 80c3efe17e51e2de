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
            trainable=None if bool(trainable.all()) else trainable,
        )

    def reset(self) -> None:
        """Forget the moments: every client starts with a fresh optimiser."""
        for tensor in (self.first, self.second, self.steps):
            tensor.zero_()


def clip(vectors: Vectors, largest: float) -> None:
    """As torch.nn.utils.clip_grad_norm_: scale by clip / (norm + 1e-6) where that is below 1."""
    norm = torch.linalg.vector_norm(vectors.gradient, dim=-1, keepdim=vectors.gradient.dim() == 2)
    vectors.gradient.mul_((largest / (norm + 1e-6)).clamp(max=1.0))


def step(vectors: Vectors, settings: TrainingSettings) -> None:
    """One optimiser step in place."""
    flat, change, decay = vectors.flat, vectors.gradient, settings.weight_decay
    weights = flat if vectors.trainable is None or not decay else flat * vectors.trainable
    if settings.optimiser == "adamw":
        if decay:
            flat.sub_(weights * (vectors.learning_rate * decay))
    elif decay:
        change = change.add(weights, alpha=decay)
    if settings.optimiser == "sgd":
        if settings.momentum:
            change = vectors.first.mul_(settings.momentum).add_(change)
        flat.sub_(change * vectors.learning_rate)
        return
    vectors.steps.add_(1)
    vectors.first.lerp_(change, 0.1)
    vectors.second.mul_(0.999).addcmul_(change, change, value=0.001)
    first_bias = 1 - torch.exp(vectors.steps * math.log(0.9))
    second_bias = 1 - torch.exp(vectors.steps * math.log(0.999))
    size = (vectors.second / second_bias).sqrt_().add_(1e-8)
    flat.sub_(vectors.first / size * (vectors.learning_rate / first_bias))
