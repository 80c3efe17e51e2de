"""FedTile: tile, then roll. A method of this project; no paper.

The wide model starts as copies of a narrow one, laid side by side: the tile. Clients train rolling windows as in
FedRolex, and while the ties hold, every update is also made in all copies of what was trained. Then every copy is what
a server model of the tile's width would be, trained by the same clients (with `training.scaler` off, which knows a
client's width). When the ties end it goes on as FedRolex from there.

The tile is as wide as the widest enrolled client. Where a client has full width there is nothing to copy: FedRolex.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedwidth.core.cohort import CohortSum
from fedwidth.core.submodel import take
from fedwidth.methods.definition import ROUNDING, Beginning, Closing, Method, Moment, Option, is_share, per_group
from fedwidth.methods.shared.tiles import block_counts, divided, width_of, width_option
from fedwidth.methods.shared.windows import DIRECTION, is_step, roll, step_units
from fedwidth.plan.axis import kept, tiling


def units(size: int, kept: int, at: Moment) -> Tensor:
    """FedRolex's window."""
    return roll(size, kept, step_units(at.options["step"], size), at, stagger=False)


def tile_counts(at: Beginning | Closing) -> dict[str, int]:
    """Units of each group in the tile."""
    width = max(at.enrolled) if at.options["tile"] is None else width_of(at.options["tile"])
    return block_counts(at.plan, width, "fedtile")


def start(beginning: Beginning) -> dict[str, Tensor]:
    """The first units of every layer, repeated over all of it."""
    plan, counts, state = beginning.plan, tile_counts(beginning), dict(beginning.state)
    for name, tensor in state.items():
        for dim in divided(plan, name, counts):
            tensor = tensor.index_select(dim, tiling(plan.axes[name][dim], counts).to(tensor.device))
        state[name] = tensor
    return state | {name: state[tied] for name, tied in plan.tied.items() if name in state}


def strength(options: dict[str, Any] | Any, round: int, rounds: int) -> float:
    """How strongly copies are tied in a round: 1 while the ties hold, then less and less, 0 in the end.

    >>> [strength({"tied": 2, "fade": 4}, round, 10) for round in (1, 2, 4, 6)]
    [1.0, 1.0, 0.5, 0.0]
    """
    held, fading = (_rounds(options[name], rounds) for name in ("tied", "fade"))
    if round < held:
        return 1.0
    return max(0.0, 1 - (round - held) / fading) if fading else 0.0


def close(closing: Closing) -> dict[str, Tensor]:
    """The average, and where copies are tied the mean update of all copies instead."""
    new, plan, counts = closing.average(), closing.plan, tile_counts(closing)
    tie = strength(closing.options, closing.round, closing.rounds)
    if not tie or all(counts[name] == group.size for name, group in plan.groups.items()):
        return new
    result = dict(new)
    for name, plain in new.items():
        dims = divided(plan, name, counts)
        if dims and name not in plan.tied and plain.is_floating_point():
            old = closing.state[name].detach()
            tied = _mean_update(old, name, closing, counts)
            for dim in dims:
                tied = tied.index_select(dim, tiling(plan.axes[name][dim], counts).to(old.device))
            result[name] = torch.lerp(plain, tied.add_(old), tie)
    return result | {name: result[tied] for name, tied in plan.tied.items() if name in result}


def _mean_update(old: Tensor, name: str, closing: Closing, counts: dict[str, int]) -> Tensor:
    """The weighted mean of what clients changed, in the tile's shape: over all clients and all copies they held."""
    plan = closing.plan
    dims = divided(plan, name, counts)
    shape = [kept(axis, counts) for axis in plan.axes[name]]
    total, weights = torch.zeros(shape, dtype=old.dtype, device=old.device), torch.zeros((), device=old.device)
    for cohort in (cohort for cohort in closing.sums if name in cohort.mean):
        weight = _held(cohort, name, closing, counts)
        update = (cohort.mean[name].to(old.dtype) - take(old, cohort.index, name)) * cohort.weight[name]
        for dim in dims:
            update = _folded(update, dim, cohort, name, closing, counts)
        total, weights = total + update, weights + weight
    return torch.where(weights > 0, total / weights.clamp(min=1e-100), 0.0).to(old.dtype)


def _held(cohort: CohortSum, name: str, closing: Closing, counts: dict[str, int]) -> Tensor:
    """The weight of a cohort in every element of the tile, counted once for each copy it held."""
    dims, sliced = divided(closing.plan, name, counts), cohort.mean[name]
    ones = torch.ones([n if d in dims else 1 for d, n in enumerate(sliced.shape)], device=sliced.device)
    held = ones.double() * cohort.weight[name]
    for dim in dims:
        held = _folded(held, dim, cohort, name, closing, counts)
    return held


def _folded(part: Tensor, dim: int, cohort: CohortSum, name: str, closing: Closing, counts: dict[str, int]) -> Tensor:
    """What stands at several copies of a unit, added up: a narrow dimension becomes the tile's."""
    axis = closing.plan.axes[name][dim]
    where = tiling(axis, counts)[cohort.index[name][dim]].to(part.device)
    shape = [kept(axis, counts) if d == dim else n for d, n in enumerate(part.shape)]
    return torch.zeros(shape, dtype=part.dtype, device=part.device).index_add_(dim, where, part)


def _rounds(value: float, rounds: int) -> float:
    """A number of rounds: as given, or that share of all."""
    return value if isinstance(value, int) else value * rounds


def _is_span(value: Any) -> bool:
    """A number of rounds, or a share of all."""
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return whole or (isinstance(value, float) and is_share(value))


SPAN = "a whole number of rounds, or a share of the run such as 0.75"

METHOD = Method(
    name="fedtile",
    title="FedTile",
    paper="this project",
    equation="docs/methods/fedtile.md",
    choose=per_group(units),
    options={
        "rounding": ROUNDING,
        "step": Option(1, "a whole number of units from 1 on or a share of the layer", is_step, "advance a round"),
        "direction": DIRECTION,
        "tile": width_option("width that is tiled; unset: the largest enrolled"),
        "tied": Option(0.75, SPAN, _is_span, "rounds in which all copies stay equal"),
        "fade": Option(0, SPAN, _is_span, "rounds in which the ties loosen after that"),
    },
    shared=lambda _: True,
    nested=lambda _: True,
    start=start,
    close=close,
)
