"""A plan as a table a person understands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from fedwidth.plan.shares import Share, share, why_so_large

if TYPE_CHECKING:
    from fedwidth.plan.plan import Plan

SHOWN = 3
"""How many items of a list are spelt out."""


CAPACITIES, BATCH = (Fraction(1, 2), Fraction(1, 4), Fraction(1, 8), Fraction(1, 16)), 32
"""For which capacities, and what number of samples in a batch, shares are shown."""


def plan_table(plan: Plan) -> str:
    """The width groups, what devices really have, what is frozen and why, couplings, numbers that follow the width,
    operators without a rule, and whether the model may take another path."""
    rows = [
        (group.name, str(group.size), _some([f"{name}[{dim}]" for name, dim in group.members]))
        for group in plan.groups.values()
    ]
    title = "1 width group" if len(rows) == 1 else f"{len(rows)} width groups"
    parts = [title, *_aligned([("group", "units", "tensor[dimension]"), *rows])]
    shares = [share(plan, capacity, batch=BATCH) for capacity in CAPACITIES]
    parts += ["", *share_lines(plan, shares, batch=BATCH)]
    frozen: dict[str, list[str]] = {}
    for name, dim, reason in plan.frozen():
        frozen.setdefault(reason, []).append(f"{name}[{dim}]")
    parts += _section("always whole", [(reason, str(len(axes)), _some(axes)) for reason, axes in frozen.items()])
    parts += _section(
        "widths that move together",
        [(c.whole, "=", c.part if c.factor == 1 else f"{c.factor} x {c.part}") for c in plan.couplings],
    )
    parts += _section(
        "widths of which multiples are kept",
        [(group.name, str(group.multiple), "units") for group in plan.groups.values() if group.multiple > 1],
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


def share_lines(plan: Plan, shares: Sequence[Share], *, batch: int) -> list[str]:
    """What devices really have of the full model, and why where that is far from what was asked."""
    title = ("capacity", "parameters", "multiply-adds", f"memory to train (batches of {batch})")
    rows = [(str(s.capacity), *(f"{part:.1%}" for part in (s.parameters, s.macs, s.memory))) for s in shares]
    widths = [max(map(len, column)) for column in zip(title, *rows, strict=True)]
    lines = ["what a device really has"]
    lines += ["  " + "  ".join(map(str.rjust, row, widths)) for row in (title, *rows)]
    far = [s for s in shares if s.is_far]
    if far:
        least = min(far, key=lambda s: s.capacity)
        held = f"a device holds {least.parameters:.0%} of the parameters"
        lines.append(f"far from what was asked: at {least.capacity} {held}")
        lines += [f"  {line}" for line in why_so_large(plan, least)]
    return lines


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
