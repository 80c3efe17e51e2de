"""Whether two models compute the same where their weights are equal, as far as what they hold tells."""

from __future__ import annotations

from collections.abc import Iterator
from functools import _lru_cache_wrapper
from types import CodeType, FunctionType, MethodType, NoneType
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.hooks import RemovableHandle

from fedwidth.plan.watching.side_effects import KEPT_BY_PYTORCH

PLAIN = (bool, int, float, complex, str, bytes, NoneType)
"""What its text tells apart; with subclasses that need not be so."""

HOOKS = tuple(name for name in KEPT_BY_PYTORCH if "_hooks" in name)
"""Where modules keep their hooks, by numbers that are counted through the whole process."""

NO_MEMBERS = (
    *("__annotations__", "__dict__", "__slotnames__", "__weakref__"),
    *("_abc_impl", "__orig_bases__", "__parameters__"),  # of abstract and generic ones
)
"""What classes hold beside what they are; some of it only once it was asked for, or an object of theirs was copied."""


def holds_alike(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules hold the same, so that with equal weights and buffers they compute the same.

    Compared is all that they reach: attributes, hooks, classes, functions with what they enclose and the globals that
    they name, and other objects as what a copy of them would be made of; what has no copy must be one object. The
    values of parameters and buffers do not count, nor which parameters are trained, nor whether the modules are in
    training mode.
    """
    names, others = _names(one), _names(other)
    met: dict[tuple[int, int], object] = {}  # with what was met, so that nothing else takes its address
    left: list[tuple[object, object]] = [(one, other)]
    while left:
        pair = mine, its = left.pop()
        if names.get(id(mine)) != others.get(id(its)):
            return False
        if mine is its or (id(mine), id(its)) in met:
            continue
        met[id(mine), id(its)] = pair
        try:
            parts = _parts_alike(mine, its, own=id(mine) in names)
        except Exception:  # it may be anything, and do anything when it is looked at
            return False
        if parts is None:
            return False
        left += parts
    return True


def _names(model: nn.Module) -> dict[int, str]:
    """The names of a model's own modules, parameters and buffers, by their identity; of tied ones the first."""
    own = (*model.named_modules(), *model.named_parameters(), *model.named_buffers())
    return {id(part): name for name, part in own}


def _parts_alike(one: object, other: object, *, own: bool) -> list[tuple[object, object]] | None:
    """What two objects are made of, in pairs that are still to be compared; None where they differ already."""
    if isinstance(one, Tensor) and isinstance(other, Tensor) and not own and not _equal(one, other):
        return None
    (mark, parts), (its_mark, its_parts) = _take_apart(one, own=own), _take_apart(other, own=own)
    return list(zip(parts, its_parts, strict=True)) if mark == its_mark and len(parts) == len(its_parts) else None


def _take_apart(value: object, *, own: bool) -> tuple[object, list[object]]:
    """What tells an object apart by itself, and what it is made of; own parts of a model have no values."""
    kind = type(value)
    if kind in PLAIN:
        return (kind, repr(value)), []  # NaN is NaN
    if isinstance(value, set | frozenset) and kind in (set, frozenset):  # True equals 1
        return (kind, {(type(item), item) for item in value}), []
    if isinstance(value, list | tuple) and kind in (list, tuple):
        return kind, list(value)
    if isinstance(value, RemovableHandle):  # what it removes is compared where it is
        return kind, []
    if isinstance(value, Tensor):
        return (value.dtype, value.shape), [kind, vars(value)]
    if isinstance(value, nn.Module):
        if parametrize.is_parametrized(value):  # its class is made of its submodules, and knows which model was copied
            kind = parametrize.type_before_parametrizations(value)
        return None, [kind, _attributes(value, own=own)]
    if isinstance(value, type):  # made anew with every model by some factories
        members = {name: held for name, held in vars(value).items() if name not in NO_MEMBERS}
        return (value.__module__, value.__qualname__), [kind, value.__bases__, members]
    if isinstance(value, FunctionType):
        enclosed = [cell.cell_contents for cell in value.__closure__ or ()]
        return value.__code__, [value.__defaults__, value.__kwdefaults__, enclosed, _globals(value), vars(value)]
    if isinstance(value, _lru_cache_wrapper):  # what it remembers follows from its function
        return kind, [vars(value)]
    if isinstance(value, MethodType):
        return kind, [value.__func__, value.__self__]
    if isinstance(value, staticmethod | classmethod):
        return kind, [value.__func__]
    if isinstance(value, property):
        return kind, [value.fget, value.fset, value.fdel]
    if isinstance(value, ref):  # to its weights, in an LSTM
        return kind, [value()]
    copied = value.__reduce_ex__(4)
    if isinstance(copied, str):  # where to find the one object of that name
        return id(value), []
    return None, [kind, *(list(part) if isinstance(part, Iterator) else part for part in copied)]


def _attributes(module: nn.Module, *, own: bool) -> dict[str, object]:
    """What a module holds, by name; its hooks are numbered from 0."""
    held = {name: value for name, value in sorted(vars(module).items()) if not own or name != "training"}
    numbers = sorted({number for name in HOOKS for number in held.get(name, ())})
    for name in HOOKS:
        held[name] = {numbers.index(number): hook for number, hook in held.get(name, {}).items()}
    return held


def _globals(function: FunctionType) -> dict[str, object]:
    """What a function finds by the global names in its code, and in that of the functions made inside it."""
    codes = [function.__code__]
    for code in codes:  # which grows
        codes += (constant for constant in code.co_consts if isinstance(constant, CodeType))
    held = function.__globals__
    return {name: held[name] for code in codes for name in code.co_names if name in held}


def _equal(one: Tensor, other: Tensor) -> bool:
    return (one.dtype, one.device) == (other.dtype, other.device) and torch.equal(one, other)
