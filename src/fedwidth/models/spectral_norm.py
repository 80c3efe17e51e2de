"""PyTorch's spectral norms: their singular vectors are brought up to date before a model is measured or taken away.

A spectral norm divides a weight by its largest singular value, which it follows with two vectors in buffers and one
power iteration for every training batch; in evaluation the vectors stay. Those of a slice are no singular vectors of
the sliced weight, nor is the average of clients' vectors that of the averaged weight, so they are found anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm

ITERATIONS = 100
"""Leave an error of a thousandth where the second singular value is 0.97 of the first."""


@dataclass(frozen=True)
class Spectral:
    """A spectral norm in a model, of either kind that PyTorch has."""

    norm: Any
    """What says how many power iterations are made at a time."""
    owner: nn.Module
    """The module with the vectors."""
    names: tuple[str, str]
    """Of the buffers that hold the vectors."""
    iterate: Callable[[], object]
    """Makes the power iterations, where the owner is in training mode."""


def spectral_norms_of(model: nn.Module) -> list[Spectral]:
    """Every spectral norm of the model: `parametrizations.spectral_norm`, and the older `torch.nn.utils` one."""
    return [found for module in model.modules() for found in _in(module)]


def vectors_of(model: nn.Module) -> dict[int, Tensor]:
    """The singular vectors in the model's buffers, by their ids."""
    found = (getattr(each.owner, name) for each in spectral_norms_of(model) for name in each.names)
    return {id(vector): vector for vector in found}


@torch.no_grad()
def update_spectral_norms(model: nn.Module) -> None:
    """Find the singular vectors of the weights that the model's spectral norms have now; modes stay as they are."""
    for found in spectral_norms_of(model):
        iterations, training = found.norm.n_power_iterations, found.owner.training
        found.norm.n_power_iterations, found.owner.training = ITERATIONS, True
        try:
            found.iterate()
        finally:
            found.norm.n_power_iterations, found.owner.training = iterations, training


def _in(module: nn.Module) -> Iterator[Spectral]:
    """Those of one module itself."""
    if isinstance(module, ParametrizationList):
        for norm in module:
            if isinstance(norm, _SpectralNorm) and hasattr(norm, "_u"):  # a vector's norm needs no iterations
                yield Spectral(norm, norm, ("_u", "_v"), module)
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, SpectralNorm):
            yield Spectral(hook, module, (f"{hook.name}_u", f"{hook.name}_v"), partial(hook, module, ()))
