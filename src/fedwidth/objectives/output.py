"""How a batch is fed to a model, and which part of what it returns counts.

Inputs that are one tensor are its one argument, a tuple its arguments, a dictionary its keyword arguments. Models
return tensors, tuples, dictionaries or Hugging Face's `ModelOutput`, which is a dictionary too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from fedwidth.errors import PlanError


def call(model: Callable[..., Any], inputs: Any) -> Any:
    """The model's answer to a batch."""
    if isinstance(inputs, Tensor):
        return model(inputs)
    return model(**inputs) if isinstance(inputs, dict) else model(*inputs)


def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A batch as the arguments and keyword arguments of a model."""
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    return ((), dict(inputs)) if isinstance(inputs, dict) else (tuple(inputs), {})


def logits_of(result: Any) -> Any:
    """What counts unless something else is said: the tensor, the first of a tuple, or of a dictionary its "logits".

    >>> logits_of({"loss": None, "logits": 3}), logits_of((1, 2))
    (3, 1)
    """
    if isinstance(result, Tensor):
        return result
    if isinstance(result, Mapping):
        found = {name: value for name, value in result.items() if value is not None}
        if "logits" in found or len(found) == 1:
            return found.get("logits", next(iter(found.values())))
        raise PlanError(f"the model returns {', '.join(map(str, found))}: say which counts with objective.output")
    if isinstance(result, tuple | list) and result:
        return result[0]
    raise PlanError(f"the model returns a {type(result).__name__}, in which no tensor is found")


def each_of(outputs: Any) -> Iterator[Any]:
    """The output of each model, of outputs of several [models, …]."""
    for number in range(len(tree_leaves(outputs)[0])):
        yield tree_map(itemgetter(number), outputs)


@dataclass(frozen=True)
class Pick:
    """Picks one part of what a model returns: a key or attribute by name, a place of a tuple by number, or "all"."""

    name: str

    def __call__(self, result: Any) -> Any:
        """The part that counts."""
        if self.name == "all":
            return result
        if self.name.isdecimal() and isinstance(result, tuple | list) and int(self.name) < len(result):
            return result[int(self.name)]
        if isinstance(result, Mapping) and self.name in result:
            return result[self.name]
        if not self.name.isdecimal() and hasattr(result, self.name):
            return getattr(result, self.name)
        raise PlanError(f"objective.output is '{self.name}', but the model returns {_describe(result)}")


def _describe(result: Any) -> str:
    if isinstance(result, Mapping):
        return f"a dictionary of {', '.join(map(str, result))}"
    if isinstance(result, tuple | list):
        return f"{len(result)} things, numbered from 0"
    return f"a {type(result).__name__}"
