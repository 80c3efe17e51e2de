"""What a step does beside its arithmetic: no model says so beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from fedwidth.plan.isolation import CONTAINERS
from fedwidth.randomness import host_state

KEPT_BY_PYTORCH = frozenset(vars(nn.Module()))
"""What every module has: its parameters, buffers, modules and hooks."""


def side_effect(module: nn.Module, step: Callable[[], object], *, buffers: bool = False) -> str | None:
    """What a step draws or changes that an engine does not see, in words; None where there is no such thing.

    Numbers, texts and plain tensors that its modules hold are looked at, also in lists and dictionaries but not in
    other objects, and where asked their buffers. Take another step before: what is only set in the first one does no
    harm.
    """
    torch_before, host_before = torch.random.get_rng_state(), host_state()
    numbers, tensors, held = _numbers(module), _tensors(module), _buffers(module) if buffers else {}
    step()
    if not torch.equal(torch.random.get_rng_state(), torch_before) or host_state() != host_before:
        return "it draws at random on the processor"
    changed = [name for name, value in _numbers(module).items() if repr(numbers.get(name)) != repr(value)]  # NaN is NaN
    changed += [name for name, (tensor, version) in tensors.items() if tensor._version != version]
    now = dict(module.named_buffers(remove_duplicate=False))
    for name, (buffer, version, value) in held.items():
        found = now.get(name)
        if found is None or buffer._version != version or not torch.equal(found, value):
            changed.append(name)
    return f"its '{changed[0]}' changes in every step" if changed else None


def _numbers(module: nn.Module) -> dict[str, int | float | complex | str]:
    return {name: value for name, value in _attributes(module) if isinstance(value, int | float | complex | str)}


def _tensors(module: nn.Module) -> dict[str, tuple[Tensor, int]]:
    """Those that are neither parameters nor buffers, each with its version, which grows where it is written to."""
    held = {name: value for name, value in _attributes(module) if isinstance(value, Tensor)}
    return {name: (value, value._version) for name, value in held.items() if not value.is_inference()}


def _attributes(module: nn.Module) -> Iterator[tuple[str, object]]:
    for name, each in module.named_modules():
        for key, value in vars(each).items():
            path = f"{name}.{key}".lstrip(".")
            yield path, value
            if type(value) in CONTAINERS and key not in KEPT_BY_PYTORCH:
                yield f"len({path})", len(value)
                inside = value.items() if isinstance(value, dict) else enumerate(value) if type(value) is list else ()
                yield from ((f"{path}[{place!r}]", held) for place, held in inside)


def _buffers(module: nn.Module) -> dict[str, tuple[Tensor, int, Tensor]]:
    """Each with its version and its value."""
    return {name: (each, each._version, each.clone()) for name, each in module.named_buffers(remove_duplicate=False)}
