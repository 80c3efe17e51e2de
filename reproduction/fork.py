"""One trunk, several heads: an idea for a method with a gain, not part of the package (docs/benchmark/tried.md).

The first layers are HeteroFL's: all clients train the same first units. The last layers are FedMosaic's: the clients of
a round train different blocks, and weights between blocks start at 0, as do those that no device can hold. So the
server's model is one trunk, which learns from everybody, and several heads on it, whose sum answers. With `trunk = 1`
it is HeteroFL, with 0 FedMosaic: `method.name = "reproduction.fork:METHOD"`.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedwidth.core.index import Index
from fedwidth.core.selection import block, prefix
from fedwidth.methods.definition import ROUNDING, Beginning, Method, Moment, Option, is_share
from fedwidth.methods.fedmosaic import block_width
from fedwidth.methods.shared.tiles import width_option, zeroed_outside
from fedwidth.plan.plan import Plan


def in_trunk(plan: Plan, share: float) -> set[str]:
    """The groups of the first layers: this share of all groups."""
    return set(list(plan.groups)[: round(share * len(plan.groups))])


def choose(plan: Plan, counts: Mapping[str, int], at: Moment) -> Index:
    """The first units of the trunk, and block number round + client of the heads, of blocks as wide as the client."""
    return _held(plan, counts, counts, at.round + at.client, at.options["trunk"])


def _held(plan: Plan, trunk: Mapping[str, int], head: Mapping[str, int], number: int, share: float) -> Index:
    common = in_trunk(plan, share)
    sizes = {name: group.size for name, group in plan.groups.items()}
    units = {
        name: prefix(size, trunk[name]) if name in common else block(size, head[name], number)
        for name, size in sizes.items()
    }
    return Index.of_units(plan, units)


def start(beginning: Beginning) -> dict[str, Tensor]:
    """The first state, with every weight set to 0 that lies between two heads or that no device can hold."""
    plan, options = beginning.plan, beginning.options
    trunk = plan.counts(max(beginning.enrolled), options["rounding"])
    head = plan.counts(block_width(beginning), options["rounding"])
    blocks = max(group.size // head[name] for name, group in plan.groups.items())
    there = [_held(plan, trunk, head, number, options["trunk"]) for number in range(blocks)]
    return zeroed_outside(beginning.state, plan, there)


METHOD = Method(
    name="fork",
    title="One trunk, several heads",
    paper="this project",
    equation="docs/benchmark/tried.md",
    choose=choose,
    options={
        "rounding": ROUNDING,
        "block": width_option("width of the heads"),
        "trunk": Option(0.75, "a share", is_share, "share of the groups, from the input on, that all clients train"),
    },
    start=start,
)
