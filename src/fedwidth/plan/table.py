"""A plan as a table a person understands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedwidth.plan.plan import Plan

SHOWN = 3
"""How many items of a list are spelt out."""


def plan_table(plan: Plan) -> str:
    """The width groups, then what is frozen and why, couplings, rewritten attributes, unknown operators and whether
    the model may take another path."""
    rows = [
        (group.name, str(group.size), _some([f"{name}[{dim}]" for name, dim in group.members]))
        for group in plan.groups.values()
    ]
    title = "1 width group" if len(rows) == 1 else f"{len(rows)} width groups"
    parts = [title, *_aligned([("group", "units", "tensor[dimension]"), *rows])]
    frozen: dict[str, list[str]] = {}
    for name, dim, reason in plan.frozen():
        frozen.setdefault(reason, []).append(f"{name}[{dim}]")
    parts += _section("always whole", [(reason, str(len(axes)), _some(axes)) for reason, axes in frozen.items()])
    parts += _section(
        "widths that move together",
        [(c.whole, "=", c.part if c.factor == 1 else f"{c.factor} x {c.part}") for c in plan.couplings],
    )
    names: dict[str, list[str]] = {}
    for attribute in plan.attributes:
        names.setdefault(attribute.described(), []).append(attribute.module or "the model")
    parts += _section(
        "attributes a narrow model changes",
        [(name, str(len(modules)), _some(dict.fromkeys(modules))) for name, modules in names.items()],
    )
    parts += _section(
        "numbers that stay, though they are a root of a width", [(number, "", "") for number in plan.left_alone]
    )
    parts += _section(
        "operators without a rule (what they touch stays whole)",
        [(name, f"{count} times", "") for name, count in plan.unknown_operators.items()],
    )
    if plan.looks_at_values:
        parts += ["", "the model looks at values: the plan holds for the path the example inputs took"]
    return "\n".join(parts)


def _section(title: str, rows: list[tuple[str, str, str]]) -> list[str]:
    return ["", title, *_aligned(rows)] if rows else []


def _aligned(rows: Sequence[tuple[str, str, str]]) -> list[str]:
    """Rows of three columns, the second flush right."""
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    return [f"  {a:<{first}}  {b:>{second}}  {c}".rstrip() for a, b, c in rows]


def _some(items: Iterable[str]) -> str:
    """The first few, and how many more."""
    found = list(items)
    rest = len(found) - SHOWN
    return ", ".join(found[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")
