"""The normalisation layers of a model: what tells them from other layers, and which tensors they hold."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
"""PyTorch's own normalisation layers."""


def is_norm(module: nn.Module) -> bool:
    """Whether a layer normalises: one of PyTorch's, or one without layers of its own whose class says so in its name.

    >>> is_norm(nn.LayerNorm(4)), is_norm(nn.Linear(4, 4)), is_norm(nn.Sequential(nn.LayerNorm(4)))
    (True, False, False)
    """
    named = "Norm" in type(module).__name__ and not any(True for _ in module.children())
    return named or isinstance(module, NORMS)


def norm_tensors(model: nn.Module) -> frozenset[str]:
    """The names of what normalisation layers learn: parameters that are trained, and running statistics.

    >>> sorted(norm_tensors(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))))
    ['1.bias', '1.weight']
    """
    found: set[str] = set()
    for path, module in model.named_modules(remove_duplicate=False):
        if is_norm(module):
            trained = (name for name, parameter in module.named_parameters(recurse=False) if parameter.requires_grad)
            buffers = (name for name, _ in module.named_buffers(recurse=False))
            found |= {f"{path}.{name}" if path else name for name in (*trained, *buffers)}
    return frozenset(found)
