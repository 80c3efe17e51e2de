"""Data of zeros in the shapes of other data: enough to build and trace a model where the data themselves are not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedwidth.data.records import KINDS, Data, Split
from fedwidth.data.trees import Tree, mapped
from fedwidth.errors import StateError

SAMPLES = 2


def facts_of(data: Data) -> dict[str, Any]:
    """What of a data set a model depends on: no sample of it, but shapes, types and the number of classes."""
    return {
        "name": data.name,
        "kind": data.kind,
        "classes": data.classes,
        "inputs": _described(data.example(SAMPLES)),
        "targets": _described(data.example_targets(SAMPLES)),
        "transform": {"scale": data.transform.scale, "mean": data.transform.mean, "std": data.transform.std},
    }


def stand_in(facts: Mapping[str, Any]) -> Data:
    """Data with these facts whose numbers are zeros, and whose whole numbers are ones: words, and masks that are on.

    >>> from fedwidth.data import from_tensors
    >>> real = from_tensors(torch.rand(5, 3), torch.arange(5), torch.rand(5, 3), torch.arange(5))
    >>> stand_in(facts_of(real)).example()
    tensor([[0., 0., 0.],
            [0., 0., 0.]])
    """
    try:
        inputs, targets = _made(facts["inputs"]), _made(facts["targets"])
        name, kind, classes = str(facts["name"]), facts["kind"], int(facts["classes"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(f"the description of the data is damaged: {error!r}") from None
    if kind not in KINDS:
        raise StateError(f"the description of the data is damaged: its kind is {kind!r}")
    targets = mapped(lambda t: t if t.is_floating_point() else torch.zeros_like(t), targets)
    return Data(name, Split(inputs, targets), Split(inputs, targets), classes, kind)


def _described(tree: Tree) -> Any:
    if isinstance(tree, Tensor):
        return {"shape": list(tree.shape), "dtype": str(tree.dtype).removeprefix("torch.")}
    if isinstance(tree, dict):
        return {"named": {name: _described(tensor) for name, tensor in tree.items()}}
    return {"listed": [_described(tensor) for tensor in tree]}


def _made(facts: Mapping[str, Any]) -> Any:
    if "named" in facts:
        return {name: _made(each) for name, each in facts["named"].items()}
    if "listed" in facts:
        return tuple(_made(each) for each in facts["listed"])
    dtype = getattr(torch, facts["dtype"])
    fill = torch.zeros if dtype.is_floating_point or dtype.is_complex else torch.ones
    return fill(facts["shape"], dtype=dtype)
