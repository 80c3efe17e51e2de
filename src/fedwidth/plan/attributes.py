"""Module attributes that a narrow module must change: head counts, split sizes, scaling factors."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from fedwidth.plan.axis import Axis, groups_of, kept
from fedwidth.plan.formulas import Binary, Equation, Formula, Held, Length, evaluate
from fedwidth.plan.node import Node


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
    buffer: bool = False
    """Whether it is held by a buffer, as one number in a tensor."""

    def at(self, counts: Mapping[str, int]) -> int | float:
        """The value when group g keeps counts[g] units."""
        size = evaluate(self.formula, lambda axis: kept(axis, counts))
        if size == evaluate(self.formula, lambda axis: axis.size):
            return self.value
        return size if self.power == 1 else float(size) ** self.power

    def described(self) -> str:
        """Its name; of a float also how it follows the width."""
        if self.power == 1:
            return self.name
        return f"{self.name} = {evaluate(self.formula, lambda axis: axis.size)} ** {self.power:g}"

    def __str__(self) -> str:
        path = f"{self.module}.{self.name}" if self.module else self.name
        return path if self.place is None else f"{path}[{self.place}]"


# Attributes of standard layers that their forward pass does not read, and the tensor dimension each describes.
DESCRIBED: tuple[tuple[type[nn.Module], dict[str, tuple[str, int]]], ...] = (
    (nn.Linear, {"in_features": ("weight", 1), "out_features": ("weight", 0)}),
    (nn.Bilinear, {"in1_features": ("weight", 1), "in2_features": ("weight", 2), "out_features": ("weight", 0)}),
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


STATING = (
    *("num_features", "head_hidden_size", "embed_dim", "embedding_dim", "hidden_size", "hidden_dim", "d_model"),
    *("feature_dim", "num_channels", "in_channels", "out_channels"),
)
"""Names under which modules keep a width that their forward pass does not read, for others to look up."""


def stated(
    model: nn.Module, axes: Mapping[str, tuple[Axis, ...]], read: Collection[Held]
) -> Iterator[tuple[Held, int, Formula]]:
    """Integers of these names that no forward pass has read, each with the width it states.

    It is the width of the last dimension of this size among the module's own tensors: features are counted where they
    leave a module. As nothing is computed with them, a wrong guess could not change what a model answers.
    """
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        for name in STATING:
            value, held = vars(module).get(name), Held(path, name)
            if type(value) is not int or value < 2 or held in read:
                continue
            own = (axis for tensor, each in axes.items() if tensor.startswith(prefix) for axis in each)
            fitting = [axis for axis in own if axis.size == value and groups_of(axis)]
            if fitting:
                yield held, value, Length(fitting[-1])
