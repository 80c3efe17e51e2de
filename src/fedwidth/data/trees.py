"""Inputs and targets of several tensors: a tuple or a dictionary of them, with the samples as their first axis.

One tensor is the usual case, and what every function here looks at first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Tree = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
"""A tensor, a tuple of tensors (the arguments of a model) or a dictionary of them (its keyword arguments)."""


def leaves(tree: Tree) -> list[Tensor]:
    """The tensors of a tree."""
    if isinstance(tree, Tensor):
        return [tree]
    return list(tree.values()) if isinstance(tree, dict) else list(tree)


def mapped(change: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """The tree with every tensor changed.

    >>> mapped(len, {"words": torch.zeros(3, 2)})
    {'words': 3}
    """
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {name: change(tensor) for name, tensor in tree.items()}
    return tuple(change(tensor) for tensor in tree)


def joined(trees: Sequence[Tree], join: Callable[[list[Tensor]], Tensor]) -> Tree:
    """Trees of one structure as one, their tensors joined place by place.

    >>> joined([{"a": torch.zeros(1)}, {"a": torch.ones(1)}], torch.cat)
    {'a': tensor([0., 1.])}
    """
    first = trees[0]
    if isinstance(first, Tensor):
        return join(list(trees))  # type: ignore[arg-type]
    if isinstance(first, dict):
        return {name: join([tree[name] for tree in trees]) for name in first}  # type: ignore[index,call-overload]
    return tuple(join([tree[place] for tree in trees]) for place in range(len(first)))  # type: ignore[index]


def pieces(tree: Tree, cut: Callable[[Tensor], Sequence[Tensor]]) -> list[Tree]:
    """The inverse of `joined`: as many trees as `cut` makes of each tensor."""
    if isinstance(tree, Tensor):
        return list(cut(tree))
    if isinstance(tree, dict):
        cuts = [cut(tensor) for tensor in tree.values()]
        return [dict(zip(tree, each, strict=True)) for each in zip(*cuts, strict=True)]
    return list(zip(*(cut(tensor) for tensor in tree), strict=True))


def shapes(*trees: Tree) -> tuple[torch.Size, ...]:
    """The shapes of all tensors of some trees."""
    found: list[torch.Size] = []
    for tree in trees:
        found += [tree.shape] if isinstance(tree, Tensor) else [leaf.shape for leaf in leaves(tree)]
    return tuple(found)


def copy_into(held: Tree, new: Tree) -> None:
    """Copy the tensors of a tree into those of another one, which keep their addresses."""
    if isinstance(held, Tensor) and isinstance(new, Tensor):
        held.copy_(new)
        return
    for own, other in zip(leaves(held), leaves(new), strict=True):
        own.copy_(other)


def count(tree: Tree) -> int:
    """How many samples it has."""
    return len(tree) if isinstance(tree, Tensor) else len(leaves(tree)[0])


def bytes_of(tree: Tree) -> int:
    """The memory its numbers take."""
    return sum(tensor.numel() * tensor.element_size() for tensor in leaves(tree))


def describe(tree: Tree) -> str:
    """Its shapes, for messages.

    >>> describe(torch.zeros(2, 3)), describe({"words": torch.zeros(2, 3)}), describe((torch.zeros(2), torch.zeros(1)))
    ('[2, 3]', '{words: [2, 3]}', '([2], [1])')
    """
    if isinstance(tree, Tensor):
        return str(list(tree.shape))
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{name}: {list(tensor.shape)}" for name, tensor in tree.items()) + "}"
    return "(" + ", ".join(str(list(tensor.shape)) for tensor in tree) + ")"


def widened(tree: Tree) -> Tree:
    """Whole numbers as int64, which is what embeddings and losses take; numbers and truth values as they are."""
    return mapped(_widened, tree)


def _widened(tensor: Tensor) -> Tensor:
    kept = tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool
    return tensor if kept else tensor.long()
