"""Values that are not finite: nothing can be learnt from them, and one of them spoils every average it is part of.

A device is asked once for all tensors: where all is well, a sum of each says so in one cheap pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedwidth.core.running_mean import accumulable
from fedwidth.core.submodel import State
from fedwidth.errors import StateError, UpdateError


def check_finite(tensors: State, who: str) -> None:
    """Refuse values that are not finite, or that an average would round."""
    for name, tensor in tensors.items():
        if tensor.is_meta:
            raise UpdateError(f"{who} sent '{name}' without values (on the meta device)")
    for name in _doubtful(tensors):
        if not _is_fractional(tensors[name].dtype):
            raise UpdateError(f"{who} sent whole numbers in '{name}' beyond 2**53, which an average would round")
        if not _is_finite(tensors[name]):
            raise UpdateError(f"{who} sent a value in '{name}' that is not finite; the round keeps the old state")


def not_finite(tensors: State) -> str | None:
    """The name of the first tensor with a value that is not finite; None where all are.

    >>> not_finite({"steps": torch.tensor(3), "weight": torch.tensor([1.0, torch.inf])})
    'weight'
    """
    doubtful = _doubtful({name: tensor for name, tensor in tensors.items() if _is_fractional(tensor.dtype)})
    return next((name for name in doubtful if not _is_finite(tensors[name])), None)


def check_made(made: Mapping[str, State]) -> None:
    """Refuse a state with a value that is not finite, in the name of who made the first one.

    `made` has, by who made it, each state that the one after it was made of. Where all is well only the last is looked
    at.
    """
    *_, last = made.values()
    if not_finite(last) is None:
        return
    for who, state in made.items():
        if (name := not_finite(state)) is not None:
            raise StateError(f"{who} gives '{name}' a value that is not finite, with which no client could train")


def _doubtful(tensors: State) -> list[str]:
    """The tensors that may hold what cannot be averaged; mostly none, after one question to each device."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors.values():
        kinds.setdefault((tensor.device, tensor.dtype), []).append(tensor.detach())
    if all(_are_sound(alike) for alike in kinds.values()):
        return []
    return [name for name, tensor in tensors.items() if not _are_sound([tensor.detach()])]


def _are_sound(alike: Sequence[Tensor]) -> bool:
    """Whether tensors of one dtype and device surely hold what can be averaged, in one question to the device.

    A finite sum proves every element finite in one cheap pass. Finite elements may have a sum that is not, so that a no
    says of fractional numbers only that each element is to be looked at.
    """
    dtype = alike[0].dtype
    if _is_fractional(dtype):
        return bool(torch.isfinite(torch.stack([accumulable(tensor).sum() for tensor in alike])).all())
    if dtype.itemsize < 8:
        return True
    together = torch.cat([tensor.flatten() for tensor in alike])
    return torch.equal(together.double().to(dtype), together)


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(accumulable(tensor.detach())).all())


def _is_fractional(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex
