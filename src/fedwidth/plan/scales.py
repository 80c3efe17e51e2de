"""Which floats of a model are roots of a width, by the evidence of how they are used."""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from fedwidth.plan.formulas import Constraints, Held
from fedwidth.plan.node import Node, find, leaves
from fedwidth.plan.watching.evidence import EMBEDDING, PRODUCT_OF_ACTIVATIONS, SUM, Evidence, Scaling

ROOT, PLAIN = "a root", "a plain number"


@dataclass
class Scales:
    """What was found out about the numbers a model scales by."""

    widths: dict[Held | str, tuple[Node, float, float]] = field(default_factory=dict)
    """An attribute or buffer that follows a width: the axis, the power of its size, and the value at full width."""
    rooted: dict[Held, Node] = field(default_factory=dict)
    """An integer attribute of which only a root is used, and the axis whose size it is."""
    left_alone: dict[str, None] = field(default_factory=dict)
    """Numbers that are the root of a width by their value, but not known to come from it."""


def find_scales(
    model: nn.Module, evidence: Evidence, constraints: Constraints, values: Mapping[Held, int], groups: set[Node]
) -> Scales:
    """Decide for every number by which a tensor was scaled whether it follows one of the groups."""
    scales = Scales()
    refused: set[Held | str] = set()
    for scaling in evidence.scalings:
        found = [pair for pair in _candidates(scaling, evidence) if groups & set(leaves(pair.axis))]
        if not found or scaling.source in refused:
            continue
        best = found[0]
        if scaling.source is None:
            _take_rooted(scales, best, constraints, values, scaling.factor)
            continue
        written = _written(model, scaling.source) if isinstance(scaling.source, Held) else None
        width = best.axis, best.power * scaling.sign, scaling.factor**scaling.sign
        known = scales.widths.get(scaling.source)
        if known is not None and find(known[0]) is not find(best.axis):
            refused.add(scaling.source)  # one number for two widths
            del scales.widths[scaling.source]
        if written == PLAIN or scaling.source in refused or not (best.certain or written == ROOT):
            scales.left_alone[_said(scaling, best)] = None
        else:
            scales.widths[scaling.source] = width
    return scales


@dataclass(frozen=True)
class _Candidate:
    """An axis of which a factor may be a power."""

    axis: Node
    power: float
    certain: bool
    """Whether the use leaves no doubt; otherwise the constructor must have computed a root."""


def _candidates(scaling: Scaling, evidence: Evidence) -> Iterator[_Candidate]:
    """Axes whose size gives the factor, those whose use fits best first."""
    origin = scaling.origin
    if origin is not None:
        powers = {PRODUCT_OF_ACTIVATIONS: (-0.5,), EMBEDDING: (0.5,), SUM: (-1, -0.5)}[origin.kind]
        for axis in origin.axes:
            for power in powers:
                if _fits(scaling, axis, power):
                    yield _Candidate(axis, power, certain=True)
    held = [set(leaves(axis)) for axis in scaling.axes]
    for axis in evidence.products:  # queries or keys, scaled before they are multiplied
        if any(set(leaves(axis)) <= whole for whole in held):
            for power in (-0.5, -0.25):
                if _fits(scaling, axis, power):
                    yield _Candidate(axis, power, certain=True)
    for axis in scaling.axes:
        for power in (-0.5, 0.5):
            if _fits(scaling, axis, power):
                size = find(axis).size
                # 0.25 may be anything; 28 ** -0.5 is no other number. (But the root of 2 has many uses.)
                yield _Candidate(axis, power, certain=size > 2 and math.isqrt(size) ** 2 != size)


def _fits(scaling: Scaling, axis: Node, power: float) -> bool:
    exact = 1e-12 if not isinstance(scaling.source, str) else 1e-6  # buffers are in single precision
    size = find(axis).size
    return size > 1 and math.isclose(scaling.factor, size**power, rel_tol=exact)


def _take_rooted(
    scales: Scales, best: _Candidate, constraints: Constraints, values: Mapping[Held, int], factor: float
) -> None:
    """A number computed in the forward pass: from an attribute, from a shape, or written there."""
    size = find(best.axis).size
    held = [attribute for attribute in constraints.rooted if values.get(attribute) == size]
    for attribute in held:
        scales.rooted.setdefault(attribute, best.axis)
    if best.certain and not held and size not in constraints.floats:
        scales.left_alone[f"{factor:.4g}, computed in the forward pass, is {size} ** {best.power:g}"] = None


def _said(scaling: Scaling, best: _Candidate) -> str:
    source = scaling.source
    name = f"{source.module}.{source.name}".lstrip(".") if isinstance(source, Held) else source
    value = scaling.factor**scaling.sign
    return f"{name} = {value:.4g} is {find(best.axis).size} ** {best.power * scaling.sign:g}"


def _written(model: nn.Module, attribute: Held) -> str | None:
    """What the constructor assigns to the attribute: a root, a plain number, or None where that cannot be seen."""
    for kind in type(model.get_submodule(attribute.module)).__mro__:
        if "__init__" not in vars(kind):
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(vars(kind)["__init__"])))
        except (OSError, TypeError, SyntaxError):
            continue
        assigned: dict[str, ast.expr] = {}
        for node in ast.walk(tree):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                assigned.update({ast.unparse(target): node.value for target in targets if target is not None})
        value: Any = assigned.get(f"self.{attribute.name}")
        if isinstance(value, ast.Name):
            value = assigned.get(value.id, value)
        if value is not None:
            return _kind_of(value)
    return None


def _kind_of(expression: ast.expr) -> str | None:
    if isinstance(expression, ast.Constant):
        return PLAIN
    for node in ast.walk(expression):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            return ROOT
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("sqrt", "rsqrt", "pow"):
            return ROOT
    return None
