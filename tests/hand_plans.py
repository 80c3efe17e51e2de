"""Plans written by hand, so that core tests do not lean on the tracer."""

from __future__ import annotations

import torch
from torch import Tensor

from fedwidth.plan.axis import Axis, Fixed, Product, Units, groups_of
from fedwidth.plan.plan import Group, Plan


def plan_of(axes: dict[str, tuple[Axis, ...]], label_axes: tuple[tuple[str, int], ...] = ()) -> Plan:
    members: dict[str, list[tuple[str, int]]] = {}
    sizes: dict[str, int] = {}

    def note(axis: Axis, name: str, dim: int) -> None:
        if isinstance(axis, Units):
            sizes[axis.group] = axis.size
        elif not isinstance(axis, Fixed):
            for part in axis.parts:
                note(part, name, dim)
        for group in groups_of(axis):
            if (name, dim) not in members.setdefault(group, []):
                members[group].append((name, dim))

    for name, dims in axes.items():
        for dim, axis in enumerate(dims):
            note(axis, name, dim)
    groups = {name: Group(name, size, tuple(members[name])) for name, size in sizes.items()}
    return Plan(axes=axes, groups=groups, parameters=frozenset(axes), label_axes=label_axes)


def mlp_plan(inputs: int = 3, first: int = 8, second: int = 6, classes: int = 4) -> Plan:
    """inputs - first - second - classes, weights [out, in]."""
    return plan_of(
        {
            "a.weight": (Units("a", first), Fixed(inputs, "input")),
            "a.bias": (Units("a", first),),
            "b.weight": (Units("b", second), Units("a", first)),
            "b.bias": (Units("b", second),),
            "c.weight": (Fixed(classes, "model output"), Units("b", second)),
            "c.bias": (Fixed(classes, "model output"),),
        },
        label_axes=(("c.weight", 0), ("c.bias", 0)),
    )


def heads_plan() -> Plan:
    """A fused projection [3 x heads x head, in] and a convolution [out, in, 3, 3]: composite and trailing axes."""
    head = Product((Fixed(3, "q, k, v"), Fixed(2, "heads"), Units("head", 5)))
    return plan_of(
        {
            "qkv.weight": (head, Units("in", 7)),
            "conv.weight": (Units("out", 6), Units("in", 7), Fixed(3, "kernel"), Fixed(3, "kernel")),
            "vector": (Units("out", 6),),
        }
    )


def random_state(plan: Plan, seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in plan.shapes.items()}
