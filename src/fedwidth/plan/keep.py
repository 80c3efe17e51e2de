"""Width groups that stay whole because the caller says so."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

from fedwidth.errors import PlanError
from fedwidth.plan.axis import KEPT
from fedwidth.plan.node import Node, freeze
from fedwidth.plan.solve import Solution


def keep_whole(patterns: Sequence[str], names: Mapping[Node, str], solution: Solution) -> None:
    """Freeze the groups whose names fit a pattern, and those that can only shrink together with them."""
    if isinstance(patterns, str):
        raise PlanError(f"keep takes a list of names of width groups, such as [{patterns!r}]")
    if not isinstance(patterns, Collection) or not all(isinstance(each, str) for each in patterns):
        raise PlanError(f"keep takes a list of names of width groups, not {patterns!r}")
    for pattern in patterns:
        found = [leaf for leaf, name in names.items() if fnmatchcase(name, pattern)]
        if not found:
            raise PlanError(f"keep names '{pattern}', but there is no such width group; there are: {_some(names)}")
        for leaf in found:
            freeze(leaf, KEPT)
    for leaf, reason in solution.held_back.items():
        freeze(leaf, reason)  # otherwise whole heads would be dropped where their size is kept
    for relation in [*solution.relations, *solution.relations]:  # from a part to the whole, and to the other parts
        pair = relation.whole, relation.part
        for leaf, other in (pair, pair[::-1]):
            if leaf.reason is not None:
                freeze(other, f"moves together with '{names[leaf]}', which is kept whole")


def _some(names: Mapping[Node, str], shown: int = 12) -> str:
    found = list(names.values())
    return ", ".join(found[:shown]) + (f" and {len(found) - shown} more" if len(found) > shown else "")
