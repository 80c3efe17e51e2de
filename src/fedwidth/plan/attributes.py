"""Module attributes that a narrow module must change: head counts, split sizes, scaling factors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from fedwidth.plan.axis import kept
from fedwidth.plan.formulas import Binary, Equation, Formula, Held, Length, evaluate
from fedwidth.plan.node import Node, leaves
from fedwidth.plan.solve import Solution, groups_in


@dataclass(frozen=True)
class Attribute:
    """A number held by a module that follows the width."""

    module: str
    name: str
    place: int | None
    """Position in a tuple or list; None for a plain number."""
    value: int | float
    """At full width."""
    formula: Formula
    """Over the plan's axes."""
    power: float = 1
    """The number is formula ** power; ±0.5 for attention scaling."""

    def at(self, counts: Mapping[str, int]) -> int | float:
        """The value when group g keeps counts[g] units."""
        size = evaluate(self.formula, lambda axis: kept(axis, counts))
        return size if self.power == 1 else float(size) ** self.power

    def __str__(self) -> str:
        path = f"{self.module}.{self.name}" if self.module else self.name
        return path if self.place is None else f"{path}[{self.place}]"


# Attributes of standard layers that their forward pass does not read, and the tensor dimension each describes.
DESCRIBED: tuple[tuple[type[nn.Module], dict[str, tuple[str, int]]], ...] = (
    (nn.Linear, {"in_features": ("weight", 1), "out_features": ("weight", 0)}),
    (nn.Embedding, {"num_embeddings": ("weight", 0), "embedding_dim": ("weight", 1)}),
    (nn.modules.batchnorm._NormBase, {"num_features": ("weight", 0)}),
    (nn.modules.batchnorm._NormBase, {"num_features": ("running_mean", 0)}),
    (nn.GroupNorm, {"num_channels": ("weight", 0)}),
    (nn.PReLU, {"num_parameters": ("weight", 0)}),
    (nn.RNNBase, {"input_size": ("weight_ih_l0", 1), "hidden_size": ("weight_hh_l0", 1)}),
    (nn.RNNCellBase, {"input_size": ("weight_ih", 1), "hidden_size": ("weight_hh", 1)}),
    (nn.MultiheadAttention, {"embed_dim": ("in_proj_weight", 1), "kdim": ("in_proj_weight", 1)}),
    (nn.MultiheadAttention, {"vdim": ("in_proj_weight", 1)}),
    (nn.MultiheadAttention, {"embed_dim": ("q_proj_weight", 1), "kdim": ("k_proj_weight", 1)}),
    (nn.MultiheadAttention, {"vdim": ("v_proj_weight", 1)}),
)


def described(model: nn.Module, axes: Mapping[str, list[Node]]) -> Iterator[Equation]:
    """What the attributes of standard layers say about their own tensors."""
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        for kind, entries in DESCRIBED:
            if isinstance(module, kind):
                for name, (tensor, dim) in entries.items():
                    if prefix + tensor in axes:
                        yield Held(path, name), Length(axes[prefix + tensor][dim])
        if isinstance(module, nn.MultiheadAttention):
            width, heads = Held(path, "embed_dim"), Held(path, "num_heads")
            yield Held(path, "head_dim"), Binary("//", width, heads)
        if isinstance(module, nn.modules.conv._ConvNd) and prefix + "weight" in axes:
            whole, part = ("in_channels", "out_channels") if module.transposed else ("out_channels", "in_channels")
            weight = axes[prefix + "weight"]
            per_group: Formula = Length(weight[1])
            if module.groups > 1:
                per_group = Binary("*", per_group, Held(path, "groups"))
            yield Held(path, whole), Length(weight[0])
            yield Held(path, part), per_group


def rooted_width(attribute: Held, value: int, axes: Mapping[str, list[Node]]) -> Formula | None:
    """The width meant by an attribute of which only a root is taken (d ** -0.5), if there is just one it can mean."""
    found = {leaf for leaf in _leaves_near(attribute.module, axes) if leaf.size == value}
    return Length(found.pop()) if len(found) == 1 else None


def roots(
    model: nn.Module, axes: Mapping[str, list[Node]], solution: Solution, values: Mapping[Held, int]
) -> Iterator[tuple[Held, float, Formula, float]]:
    """(attribute, value, formula, power) of every float that is n ** ±0.5 of a width n of its module."""
    groups = set(solution.groups)
    for path, module in model.named_modules():
        floats = {name: value for name, value in vars(module).items() if type(value) is float and value > 0}
        if not floats or type(module).__module__.startswith("torch.nn."):
            continue
        widths: list[tuple[int, Formula]] = [
            (values[held], formula)
            for held, formula in solution.formulas.items()
            if held.module == path and groups_in(formula, groups)
        ]
        widths += [(leaf.size, Length(leaf)) for leaf in _leaves_near(path, axes) if leaf in groups]
        for name, value in floats.items():
            for size, formula in widths:
                power = next((p for p in (-0.5, 0.5) if math.isclose(value, size**p, rel_tol=1e-12)), None)
                if power is not None and _is_scale(name, size):
                    yield Held(path, name), value, formula, power
                    break


def _leaves_near(path: str, axes: Mapping[str, list[Node]]) -> Iterator[Node]:
    """Leaves of a module's own tensors and those of its direct children."""
    prefix = f"{path}." if path else ""
    for name, nodes in axes.items():
        if name.startswith(prefix) and name.count(".", len(prefix)) <= 1:
            for node in nodes:
                yield from leaves(node)


def _is_scale(name: str, size: int) -> bool:
    """0.5 is 4 ** -0.5 and also a dropout rate: where the root is a plain number, the name must say what it is."""
    return math.isqrt(size) ** 2 != size or any(word in name for word in ("scal", "factor", "temper"))


def read(module: nn.Module, name: str, place: int | None) -> Any:
    """The present value of an attribute."""
    value = getattr(module, name)
    return value if place is None else value[place]
