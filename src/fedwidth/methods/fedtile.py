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
from fedwidth.core.submodel import take, with_ties
from fedwidth.methods.definition import ROUNDING, Beginning, Closing, Method, Moment, Option, is_share, per_group
from fedwidth.methods.shared.tiles import block_counts, divided, width_of, width_option
from fedwidth.methods.shared.windows import DIRECTION, is_step, roll, step_units
from fedwidth.plan.axis import kept, tiling


def units(size: int, kept: int, at: Moment) -> Tensor:
    """The same window as FedRolex's."""
    return roll(size, kept, step_units(at.options["step"], size), at, stagger=False)


def tile_counts(at: Beginning | Closing) -> dict[str, int]:
    """How many units of each group the tile has."""
    width = max(at.enrolled) if at.options["tile"] is None else width_of(at.options["tile"])
    return block_counts(at.plan, width, "fedtile")


def start(beginning: Beginning) -> dict[str, Tensor]:
    """The first state: the first units of every layer, repeated over all of the layer."""
    plan, counts, state = beginning.plan, tile_counts(beginning), dict(beginning.state)
    for name, tensor in state.items():
        for dim in divided(plan, name, counts):
            tensor = tensor.index_select(dim, tiling(plan.axes[name][dim], counts).to(tensor.device))
        state[name] = tensor
    return with_ties(state, plan)


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
    """Average; where copies are tied, every copy takes the mean update of all of them instead."""
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
    return with_ties(result, plan)


def _mean_update(old: Tensor, name: str, closing: Closing, counts: dict[str, int]) -> Tensor:
    """The weighted mean of what clients changed, in the tile's shape: over all clients and all copies they held."""
    plan = closing.plan
    dims = divided(plan, name, counts)
    shape = [kept(axis, counts) for axis in plan.axes[name]]
    total, weights = torch.zeros(shape, dtype=old.dtype, device=old.device), torch.zeros((), device=old.device)
    for summed in (summed for summed in closing.sums if name in summed.mean):
        weight = _held(summed, name, closing, counts)
        update = (summed.mean[name].to(old.dtype) - take(old, summed.index, name)) * summed.weight[name]
        for dim in dims:
            update = _folded(update, dim, summed, name, closing, counts)
        total, weights = total + update, weights + weight
    return torch.where(weights > 0, total / weights.clamp(min=1e-100), 0.0).to(old.dtype)


def _held(summed: CohortSum, name: str, closing: Closing, counts: dict[str, int]) -> Tensor:
    """The weight of the clients of one sum in every element of the tile, counted once for each copy they held."""
    dims, sliced = divided(closing.plan, name, counts), summed.mean[name]
    ones = torch.ones([n if d in dims else 1 for d, n in enumerate(sliced.shape)], device=sliced.device)
    held = ones.double() * summed.weight[name]
    for dim in dims:
        held = _folded(held, dim, summed, name, closing, counts)
    return held


def _folded(part: Tensor, dim: int, summed: CohortSum, name: str, closing: Closing, counts: dict[str, int]) -> Tensor:
    """Add up what stands at several copies of a unit, so that a narrow dimension becomes one of the tile."""
    axis = closing.plan.axes[name][dim]
    where = tiling(axis, counts)[summed.index[name][dim]].to(part.device)
    shape = [kept(axis, counts) if d == dim else n for d, n in enumerate(part.shape)]
    return torch.zeros(shape, dtype=part.dtype, device=part.device).index_add_(dim, where, part)


def _rounds(value: float, rounds: int) -> float:
    """How many rounds an option stands for: as given, or that share of all rounds."""
    return value if isinstance(value, int) else value * rounds


def _is_span(value: Any) -> bool:
    """Whether a value is a number of rounds, or a share of all rounds."""
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
