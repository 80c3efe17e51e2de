"""From what a trace has shown to what may be sliced: head policy, attributes, couplings, conflicts.

A conflict is an equation between sizes that stops holding when some group is sliced. If it ties two groups by a whole
factor it becomes a coupling; otherwise the groups in it are frozen. Nothing wrong is left over.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from fedwidth.plan.formulas import Binary, Equation, Formula, Held, Length, Number, atoms, evaluate, invert, replace
from fedwidth.plan.node import LEAF, PRODUCT, Node, factors, find, freeze, kept, leaves

SAMPLES = 8


@dataclass(frozen=True)
class Relation:
    """Leaf `whole` keeps `factor` times as many units as leaf `part`."""

    whole: Node
    factor: int | Fraction
    part: Node

    @classmethod
    def between(cls, whole: Node, part: Node) -> Relation:
        """Both keep the same share of their units."""
        ratio = Fraction(whole.size, part.size)
        return cls(whole, ratio.numerator if ratio.denominator == 1 else ratio, part)


@dataclass
class Solution:
    """What may be sliced, and what has to follow."""

    groups: list[Node]
    held_back: dict[Node, str]
    """Leaves the head policy keeps whole, and why."""
    formulas: dict[Held, Formula]
    """How each attribute follows from the sizes of axes."""
    relations: list[Relation] = field(default_factory=list)


def solve(axes: Sequence[Node], equations: Sequence[Equation], values: Mapping[Held, int], *, heads: str) -> Solution:
    """Find the largest set of groups the equations allow; `axes` are those of the model's tensors."""
    distinct = _distinct(equations)
    for sides in distinct:
        for size, other in (sides, sides[::-1]):
            if isinstance(size, Number) and isinstance(other, Length):
                freeze(other.axis, f"size {size.value} is written in the code")
    while True:
        held_back = _policy(axes, heads)
        groups = [leaf for leaf in _free_leaves(axes) if leaf not in held_back]
        solution = Solution(groups, held_back, _attribute_formulas(distinct, values, set(groups)))
        if not _first_conflict(solution, distinct, values):
            return solution


def _distinct(equations: Iterable[Equation]) -> list[Equation]:
    """Each equation once, in terms of the nodes that stand for its axes now."""

    def settle(formula: Formula) -> Formula:
        return replace(formula, lambda atom: Length(find(atom.axis)) if isinstance(atom, Length) else atom)

    settled = ((settle(left), settle(right)) for left, right in equations)
    return list(dict.fromkeys(pair for pair in settled if pair[0] != pair[1]))


def _free_leaves(axes: Sequence[Node]) -> list[Node]:
    return list(dict.fromkeys(leaf for axis in axes for leaf in leaves(axis) if leaf.reason is None))


def _policy(axes: Sequence[Node], heads: str) -> dict[Node, str]:
    """In a product with several free factors keep all but the minor ("within") or the major one ("whole") whole."""
    held_back: dict[Node, str] = {}
    within = heads == "within"
    reason = "head or group count (heads='within')" if within else "head or group size (heads='whole')"

    def visit(node: Node) -> None:
        node = find(node)
        if node.kind == PRODUCT:
            free = [
                factor
                for factor in factors(node)
                if any(leaf.reason is None and leaf not in held_back for leaf in leaves(factor))
            ]
            for factor in free[:-1] if within else free[1:]:
                held_back.update(dict.fromkeys(leaves(factor), reason))
        if node.kind != LEAF:
            for part in node.parts:
                visit(part)

    for axis in axes:
        visit(axis)
    return held_back


def _attribute_formulas(
    equations: Sequence[Equation], values: Mapping[Held, int], groups: set[Node]
) -> dict[Held, Formula]:
    """Solve for attributes: first those an equation names alone, then those left over in a longer one."""
    formulas: dict[Held, Formula] = {}
    sides = [(mine, its) for left, right in equations for mine, its in ((left, right), (right, left))]

    def resolve(formula: Formula) -> Formula:
        return replace(formula, lambda atom: formulas.get(atom, atom) if isinstance(atom, Held) else atom)

    def unknowns(formula: Formula) -> set[Held]:
        return {atom for atom in atoms(formula) if isinstance(atom, Held)}

    def constant(formula: Formula, but: Held | None = None) -> Formula:
        return replace(formula, lambda a: Number(values[a]) if isinstance(a, Held) and a != but else a)

    def take(mine: Formula, its: Formula, constants: bool) -> bool:
        mine, its = resolve(mine), resolve(its)
        if constants:
            its = constant(its)
            if len(unknowns(mine)) > 1 and not unknowns(its) and groups_in(its, groups):
                # `channels // paths == size of an axis`: the width among them is a multiple of the axis's size.
                size = evaluate(its, lambda axis: find(axis).size)
                wide = [attribute for attribute in unknowns(mine) if values[attribute] % size == 0]
                mine = constant(mine, wide[0]) if len(wide) == 1 else mine
        if len(unknowns(mine)) != 1 or unknowns(its):
            return False
        (attribute,) = unknowns(mine)
        formula = invert(mine, its, attribute)
        if formula is None or evaluate(formula, lambda axis: find(axis).size) != values[attribute]:
            return False
        formulas[attribute] = formula if groups_in(formula, groups) else Number(values[attribute])
        return True

    sides.sort(key=lambda side: not isinstance(side[0], Held))
    for constants in (False, True):  # at last, an attribute no equation ties to a group is a constant
        while sum([take(mine, its, constants) for mine, its in sides]):
            pass
    return formulas


def groups_in(formula: Formula, groups: Iterable[Node]) -> list[Node]:
    """The groups a formula depends on, each once."""
    chosen = groups if isinstance(groups, (set, dict)) else set(groups)
    found = (leaf for atom in atoms(formula) if isinstance(atom, Length) for leaf in leaves(atom.axis))
    return list(dict.fromkeys(leaf for leaf in found if leaf in chosen))


def _first_conflict(solution: Solution, equations: Sequence[Equation], values: Mapping[Held, int]) -> bool:
    """Turn conflicts into relations; at the first that cannot be, freeze its groups and return True."""
    groups = set(solution.groups)

    def settle(atom: Number | Length | Held) -> Formula:
        return solution.formulas.get(atom, Number(values[atom])) if isinstance(atom, Held) else atom

    conflicts = []
    for original in equations:
        equation = replace(original[0], settle), replace(original[1], settle)
        involved = groups_in(Binary("+", *equation), groups)
        if involved and not _holds(equation, involved, []):
            conflicts.append((original, equation, involved))
    found = [relation for _, equation, involved in conflicts for relation in _relations(equation, involved)]
    solution.relations = _stars(found, solution.groups)
    for original, equation, involved in conflicts:
        # Under all relations: `heads * (width // heads) == width` holds for widths that heads divides.
        if not _holds(equation, involved, solution.relations):
            for leaf in involved:
                freeze(leaf, _reason(*original))
            return True
    return False


def _reason(left: Formula, right: Formula) -> str:
    for side in (left, right):
        if isinstance(side, Number):
            return f"size {side.value} is written in the code"
    names = [atom for side in (left, right) for atom in atoms(side) if isinstance(atom, Held)]
    if names:
        return f"attribute '{names[0].name}' must fit several axes"
    return "a size computed in the code does not follow the width"


def _holds(equation: Equation, involved: Sequence[Node], relations: Sequence[Relation]) -> bool:
    """Whether both sides agree at many widths (of those the relations allow)."""
    draw = random.Random(0)
    for sample in range(SAMPLES + len(involved)):
        counts = {leaf: draw.randint(1, leaf.size) for leaf in involved}
        if sample >= SAMPLES:  # each group alone
            counts = {leaf: leaf.size - (leaf is involved[sample - SAMPLES]) for leaf in involved}
        _couple(counts, relations, draw)
        try:
            left, right = (evaluate(side, lambda axis: kept(axis, counts)) for side in equation)  # noqa: B023
        except ZeroDivisionError:
            return False
        if left != right:
            return False
    return True


def _couple(counts: dict[Node, int], relations: Sequence[Relation], draw: random.Random) -> None:
    """Redraw the counts of related groups so that every relation holds."""
    for whole in dict.fromkeys(relation.whole for relation in relations):
        parts = [relation for relation in relations if relation.whole is whole]
        if whole in counts or any(relation.part in counts for relation in parts):
            step = _step(parts)
            counts[whole] = step * draw.randint(1, whole.size // step)
            counts.update({relation.part: int(counts[whole] / Fraction(relation.factor)) for relation in parts})


def _step(relations: Iterable[Relation]) -> int:
    """The number of units of which the whole of these relations keeps a multiple."""
    return math.lcm(*(Fraction(relation.factor).numerator for relation in relations))


def _relations(equation: Equation, involved: Sequence[Node]) -> list[Relation]:
    """Relations under which the equation holds: all its groups keep the same share. None if that must be all."""
    if len(involved) < 2:
        return []
    whole = max(involved, key=lambda leaf: leaf.size)
    relations = [Relation.between(whole, part) for part in involved if part is not whole]
    narrower = whole.size > _step(relations)
    return relations if narrower and _holds(equation, involved, relations) else []


def _stars(found: Sequence[Relation], order: list[Node]) -> list[Relation]:
    """The same relations with one whole, the largest, per connected set of groups."""
    neighbours: dict[Node, list[Node]] = {}
    for relation in found:
        neighbours.setdefault(relation.whole, []).append(relation.part)
        neighbours.setdefault(relation.part, []).append(relation.whole)
    stars: list[Relation] = []
    seen: set[Node] = set()
    for start in neighbours:
        if start in seen:
            continue
        connected, queue = [start], [start]
        while queue:
            for leaf in neighbours[queue.pop()]:
                if leaf not in connected:
                    connected.append(leaf)
                    queue.append(leaf)
        seen.update(connected)
        whole = max(sorted(connected, key=order.index), key=lambda leaf: leaf.size)
        # Every relation is a ratio of full sizes, so the ratios to the largest follow.
        star = [Relation.between(whole, part) for part in sorted(connected, key=order.index) if part is not whole]
        if whole.size > _step(star):  # otherwise the equations are left unmet, and the groups are frozen
            stars += star
    return stars
