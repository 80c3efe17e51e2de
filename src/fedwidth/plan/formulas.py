"""Numbers a model computes with: where an integer came from and what it must become in a narrow model.

While a model is traced, its integer attributes and the sizes of its tensors are `FollowedInt`s: ordinary integers that
remember the formula they came from. `x.view(b, t, self.heads, x.shape[-1] // self.heads)` then states two equations,
`heads = size of axis 2` and `size // heads = size of axis 3`. `invert` solves such an equation for one attribute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
}


@dataclass(frozen=True)
class Number:
    """A literal."""

    value: int


@dataclass(frozen=True)
class Length:
    """The size of an axis (a `Node` while tracing, an `Axis` in the finished plan)."""

    axis: Any


@dataclass(frozen=True)
class Held:
    """An integer attribute of a module; `place` is the position in a tuple or list, else None."""

    module: str
    name: str
    place: int | None = None


@dataclass(frozen=True)
class Binary:
    """left `sign` right."""

    sign: str
    left: Formula
    right: Formula


Formula = Number | Length | Held | Binary
Equation = tuple[Formula, Formula]


def atoms(formula: Formula) -> Iterator[Number | Length | Held]:
    """Every leaf of the formula."""
    if isinstance(formula, Binary):
        yield from atoms(formula.left)
        yield from atoms(formula.right)
    else:
        yield formula


def replace(formula: Formula, change: Callable[[Number | Length | Held], Formula]) -> Formula:
    """The formula with every leaf changed."""
    if isinstance(formula, Binary):
        return Binary(formula.sign, replace(formula.left, change), replace(formula.right, change))
    return change(formula)


def evaluate(formula: Formula, length: Callable[[Any], int]) -> int:
    """Its value, given the length of every axis; no attribute may be left in it."""
    match formula:
        case Number(value):
            return value
        case Length(axis):
            return length(axis)
        case Binary(sign, left, right):
            return OPERATIONS[sign](evaluate(left, length), evaluate(right, length))
        case Held():
            raise TypeError(f"{formula} has no value of its own")


def invert(formula: Formula, result: Formula, unknown: Held) -> Formula | None:
    """What `unknown` must be for formula == result; None unless it occurs exactly once.

    >>> heads = Held("attention", "heads")
    >>> invert(Binary("*", Number(3), heads), Number(12), heads)
    Binary(sign='//', left=Number(value=12), right=Number(value=3))
    """
    if sum(atom == unknown for atom in atoms(formula)) != 1:
        return None
    while isinstance(formula, Binary):
        sign, left, right = formula.sign, formula.left, formula.right
        if unknown in atoms(left):
            undo = {"+": "-", "-": "+", "*": "//", "//": "*"}[sign]
            formula, result = left, Binary(undo, result, right)
        elif sign in ("+", "*"):
            formula, result = right, Binary("-" if sign == "+" else "//", result, left)
        else:
            formula, result = right, Binary(sign, left, result)
    return result


class Constraints:
    """What the followed integers of one trace were found to state."""

    def __init__(self) -> None:
        self.equations: list[Equation] = []
        self.rooted: dict[Held, None] = {}
        """Attributes whose floating-point power or root was taken, such as head_dim ** -0.5."""
        self.floats: set[int] = set()
        """Followed integers that were turned into floats: what is computed from those follows the width by itself."""

    def equate(self, left: Formula, right: Formula) -> None:
        """Both must stay equal at every width."""
        if left != right:
            self.equations.append((left, right))


class FollowedInt(int):
    """An integer that remembers its formula; any arithmetic other than + - * // forgets it."""

    formula: Formula
    constraints: Constraints

    def __new__(cls, value: int, formula: Formula, constraints: Constraints) -> FollowedInt:
        """An integer made by this formula, which reports to this constraints."""
        self = super().__new__(cls, value)
        self.formula = formula
        self.constraints = constraints
        return self

    def __eq__(self, other: object) -> bool:
        equal = int.__eq__(self, other)
        if equal is True:  # NotImplemented for foreign types
            self.constraints.equate(self.formula, formula_of(other))
        return equal

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    __hash__ = int.__hash__

    def _rooted(self) -> None:
        self.constraints.floats.add(int(self))
        for atom in atoms(self.formula):
            if isinstance(atom, Held):
                self.constraints.rooted[atom] = None

    def __float__(self) -> float:
        self._rooted()
        return int.__float__(self)

    def __pow__(self, other: Any, modulo: Any = None) -> Any:
        if isinstance(other, float):
            return float(self) ** other
        return int.__pow__(self, other, modulo)

    def __truediv__(self, other: Any) -> Any:
        self._rooted()
        return int.__truediv__(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        self._rooted()
        return int.__rtruediv__(self, other)

    def __neg__(self) -> FollowedInt:
        return FollowedInt(-int(self), Binary("-", Number(0), self.formula), self.constraints)

    def __reduce__(self) -> Any:
        return int, (int(self),)

    def __deepcopy__(self, memo: Any) -> int:
        return int(self)


class FollowedFloat(float):
    """A float attribute of a module, or its reciprocal; any other arithmetic forgets where it came from."""

    attribute: Held
    exponent: int
    full: float
    """The attribute's own value, of which this is the power `exponent`."""

    def __new__(cls, value: float, attribute: Held, exponent: int = 1) -> FollowedFloat:
        """The attribute of this value, or with exponent -1 its reciprocal."""
        self = super().__new__(cls, value**exponent)
        self.attribute, self.exponent, self.full = attribute, exponent, float(value)
        return self

    def __rtruediv__(self, other: Any) -> Any:
        if type(other) in (int, float) and other == 1:
            return FollowedFloat(self.full, self.attribute, -self.exponent)
        return float.__rtruediv__(self, other)

    def __reduce__(self) -> Any:
        return float, (float(self),)

    def __deepcopy__(self, memo: Any) -> float:
        return float(self)


def formula_of(value: Any) -> Formula:
    """Where an integer came from; a plain one is a literal."""
    return value.formula if isinstance(value, FollowedInt) else Number(int(value))


def _operator(sign: str, name: str, reflected: bool) -> Callable[[FollowedInt, Any], Any]:
    plain = getattr(int, name)

    def apply(self: FollowedInt, other: Any) -> Any:
        value = plain(self, other)
        if value is NotImplemented:
            return value
        mine, its = self.formula, formula_of(other)
        formula = Binary(sign, its, mine) if reflected else Binary(sign, mine, its)
        return FollowedInt(value, formula, self.constraints)

    return apply


for _sign, _name in {"+": "add", "-": "sub", "*": "mul", "//": "floordiv"}.items():
    setattr(FollowedInt, f"__{_name}__", _operator(_sign, f"__{_name}__", reflected=False))
    setattr(FollowedInt, f"__r{_name}__", _operator(_sign, f"__r{_name}__", reflected=True))
