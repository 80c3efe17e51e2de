"""The optimisers of clients: SGD, Adam and AdamW with PyTorch's arithmetic, and clipping of the gradient's norm.

Written here, not taken from `torch.optim`, because one text must serve the parameters of a module, a flat vector and
the rows of a stack, and be captured once for many clients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedwidth.settings import TrainingSettings
from fedwidth.training.weights import Number, Weights


def clip(gradients: list[Tensor], largest: float, *, rows: bool = False) -> None:
    """Scale gradients whose norm is too large, by largest / (norm + 1e-6), as `torch.nn.utils.clip_grad_norm_` does.

    With `rows`, each row is a client of its own.
    """
    if rows:
        norm = torch.linalg.vector_norm(gradients[0], dim=-1, keepdim=True)
    elif len(gradients) == 1:
        norm = torch.linalg.vector_norm(gradients[0])
    else:
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    _apply("mul_", gradients, (largest / (norm + 1e-6)).clamp(max=1.0))


def optimise(weights: Weights, used: list[int], settings: TrainingSettings) -> None:
    """SGD, Adam and AdamW with PyTorch's arithmetic."""

    def own(tensors: Sequence[Tensor | None]) -> list[Tensor]:
        return [tensor for number in used if (tensor := tensors[number]) is not None] if tensors else []

    values, changes, scratch = own(weights.values), own(weights.gradients), own(weights.scratch)
    rate, decay = weights.rate, settings.weight_decay
    if decay:
        decayed, moved = values, changes
        if weights.undecayed:
            kept = [place for place, number in enumerate(used) if number not in weights.undecayed]
            decayed, moved = [values[place] for place in kept], [changes[place] for place in kept]
        held = decayed if weights.decaying is None else _times(decayed, weights.decaying, scratch)
        if settings.optimiser == "adamw" and not isinstance(rate, Tensor):
            _apply("mul_", decayed, 1 - rate * decay)
        elif settings.optimiser == "adamw":
            _apply("sub_", decayed, _times(held, rate * decay, scratch))
        else:
            _apply("add_", moved, held, alpha=decay)
    first, second = own(weights.first), own(weights.second)
    if settings.optimiser == "sgd":
        if settings.momentum:
            _apply("mul_", first, settings.momentum)
            _apply("add_", first, changes)
            changes = first
        if isinstance(rate, Tensor):
            _apply("addcmul_", values, changes, [rate] * len(values), value=-1.0)
        else:
            _apply("add_", values, changes, alpha=-rate)
        return
    values, changes, first, second = (list(map(_real, tensors)) for tensors in (values, changes, first, second))
    weights.steps = weights.steps.add_(1) if isinstance(weights.steps, Tensor) else weights.steps + 1
    _apply("lerp_", first, changes, 1 - 0.9)
    _apply("mul_", second, 0.999)
    _apply("addcmul_", second, changes, changes, value=1 - 0.999)
    size = _roots(second, scratch)
    if not isinstance(rate, Tensor):  # numbers: to the bit as PyTorch's own
        _apply("div_", size, _bias(weights.steps, 0.999) ** 0.5)
        _apply("add_", size, 1e-8)
        _apply("addcdiv_", values, first, size, value=-(rate / _bias(weights.steps, 0.9)))
        return
    _apply("mul_", size, _bias(weights.steps, 0.999).rsqrt())
    _apply("add_", size, 1e-8)
    moves = _quotients(first, size)
    _apply("mul_", moves, rate / _bias(weights.steps, 0.9))
    _apply("sub_", values, moves)


def _real(tensor: Tensor) -> Tensor:
    """A complex tensor as pairs of real numbers, whose moments are apart."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _bias(steps: Number, keep: float) -> Any:
    """1 - keep^steps: what a moment that began at 0 lacks."""
    return 1 - torch.exp(steps * math.log(keep)) if isinstance(steps, Tensor) else 1 - keep**steps


# One tensor is moved by the plain operator; many (the parameters of a module) by as few kernels as PyTorch needs.


def _apply(operator: str, tensors: list[Tensor], *others: Any, **numbers: float) -> None:
    """Apply an operator to every tensor, in place."""
    if len(tensors) == 1:
        getattr(tensors[0], operator)(*[o[0] if isinstance(o, list) else o for o in others], **numbers)
    elif tensors:
        getattr(torch, f"_foreach_{operator}")(tensors, *others, **numbers)


def _times(tensors: list[Tensor], factor: Number, scratch: list[Tensor]) -> list[Tensor]:
    """The tensors times a number."""
    if len(tensors) == 1:
        return [torch.mul(tensors[0], factor, out=scratch[0] if scratch else None)]
    return list(torch._foreach_mul(tensors, factor)) if tensors else []


def _roots(tensors: list[Tensor], scratch: list[Tensor]) -> list[Tensor]:
    """The square roots of the tensors."""
    if len(tensors) == 1:
        return [torch.sqrt(tensors[0], out=scratch[0] if scratch else None)]
    return list(torch._foreach_sqrt(tensors)) if tensors else []


def _quotients(tensors: list[Tensor], others: list[Tensor]) -> list[Tensor]:
    """The tensors divided by others, which are used up."""
    if len(tensors) == 1:
        return [torch.div(tensors[0], others[0], out=others[0])]
    return list(torch._foreach_div(tensors, others)) if tensors else []
