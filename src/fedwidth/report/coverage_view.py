"""The coverage view: how often each weight was trained, round by round, as a run's own clients trained it.

`analysis.coverage` asks what a method would do with given devices; here the cohorts are those the run wrote down.
Counts are kept on the sliced dimensions only (a 3 x 3 kernel is trained as a whole).
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedwidth.analysis.replay import replay
from fedwidth.core.index import Index
from fedwidth.plan.axis import groups_of
from fedwidth.plan.plan import Plan
from fedwidth.report.attendance import Attendance, read_attendances
from fedwidth.report.rebuild import Rebuilt
from fedwidth.report.runs import Run

MAX_FRAMES = 24
"""How many rounds the slider of the page stops at."""
MAX_LAYERS = 40
MAX_SIDE, MIN_SIDE = 64, 16
"""Rows and columns of a grid: larger layers are shown as means over blocks, until the page is small enough."""
MAX_BYTES = 2_200_000
"""The size of all compressed grids of a page, which is to stay below 6 MB. The smallest grids of 8 entries fit."""
MAX_UPDATES, MAX_WORK = 6_000, 20_000_000_000
"""How many client updates are counted for one entry, and how many times the size of the model, so that it takes
seconds; a longer run is counted over its first rounds."""
MAX_HELD = 500
"""How many sub-models are kept before they are counted in one go."""


@dataclass(frozen=True)
class Frame:
    """What had been trained after a number of rounds."""

    round: int
    updates: int
    """How many client updates had been made."""
    share: float
    """The share of the weights that had been trained at least once."""
    evenness: float
    """Jain's index of the counts: 1 when every weight was trained equally often."""
    grids: dict[str, Tensor]
    """How often the weights of each layer were trained, rows out and columns in; of large layers means over blocks."""


def count_training(run: Run, built: Rebuilt) -> list[Frame]:
    """The frames of a run, spread evenly over the logarithm of its rounds."""
    plan = built.plan
    counts = {
        name: torch.zeros([axis.size if groups_of(axis) else 1 for axis in plan.axes[name]])
        for name in plan.axes
        if name in plan.parameters and name not in plan.tied and name not in plan.untrained
    }
    shown, updates, frames = layers(plan), 0, []
    attendances = _affordable(read_attendances(run), sum(t.numel() for t in counts.values()))
    # While a run goes on, the stops are those of the whole run, so that they stay where they are.
    counted = len(attendances)
    whole = counted if run.done > counted else max(counted, run.rounds)
    stops = {stop for stop in frame_rounds(whole) if stop < counted} | {counted}
    held: list[Index] = []
    chosen = replay(
        built.method,
        plan,
        [attendance.cohort for attendance in attendances],
        built.settings.seed,
        counts=lambda round, task: task.client in attendances[round].trained,
    )
    for round, tasks in enumerate(chosen):
        trained = [task.index for task in tasks if task.client in attendances[round].trained]
        held += trained
        updates += len(trained)
        if round + 1 in stops or len(held) > MAX_HELD:
            _add(counts, plan, held)
            held = []
        if round + 1 in stops:
            grids = {name: pool(_grid(counts[name], plan.shapes[name]), MAX_SIDE).float() for name in shown}
            frames.append(Frame(round + 1, updates, *_evenness(counts, plan), grids))
    return frames


def _add(counts: dict[str, Tensor], plan: Plan, held: Sequence[Index]) -> None:
    """Add these sub-models to the counts.

    Each is an outer product of what it keeps of each dimension, so the sum of them over all clients is a product of
    matrices (clients x positions): exact in float32 below 2**24.
    """
    known: dict[Any, Tensor] = {}

    def kept(name: str, dim: int) -> Tensor:
        axis = plan.axes[name][dim]
        # Tensors of one group keep the same positions, except in FedBRB.
        key = axis if all(index.units is not None for index in held) else (name, dim)
        if key not in known:
            known[key] = torch.zeros(len(held), axis.size)
            for row, index in zip(known[key], held, strict=True):
                row[index[name][dim]] = 1
        return known[key]

    for name, count in counts.items():
        sliced = [kept(name, dim) for dim, axis in enumerate(plan.axes[name]) if groups_of(axis)]
        *others, last = sliced or [torch.ones(len(held), 1)]
        rows = torch.ones(len(held), 1)
        for other in others:
            rows = (rows[:, :, None] * other[:, None, :]).flatten(1)
        count += (rows.T @ last).reshape(count.shape)


def _affordable(attendances: list[Attendance], size: int) -> list[Attendance]:
    """The first rounds, as many as can be counted in seconds."""
    updates = np.cumsum([len(attendance.cohort) for attendance in attendances])
    most = min(MAX_UPDATES, MAX_WORK // max(1, size))
    return attendances[: max(1, int(np.searchsorted(updates, most, side="right")))]


def layers(plan: Plan, most: int = MAX_LAYERS) -> list[str]:
    """The names of the matrices and kernels to show: all that are sliced.

    Where they are too many, those sliced both ways come before those sliced one way, spread over the depth.
    """
    both: list[str] = []
    one: list[str] = []
    for name, axes in plan.axes.items():
        if name in plan.parameters and name not in (*plan.tied, *plan.untrained) and len(axes) >= 2:
            sliced = [bool(groups_of(axis)) for axis in axes[:2]]
            (both if all(sliced) else one if any(sliced) else []).append(name)
    chosen = _spread(both, most)
    chosen += _spread(one, most - len(chosen))
    return [name for name in plan.axes if name in chosen]


def best_layer(plan: Plan, names: Sequence[str]) -> str:
    """The layer to show first: sliced both ways if one is, and of those the one with the most rows and columns."""

    def rank(name: str) -> tuple[int, int]:
        return sum(bool(groups_of(axis)) for axis in plan.axes[name][:2]), min(plan.shapes[name][:2])

    return max(names, key=rank, default="")


def frame_rounds(rounds: int, most: int = MAX_FRAMES) -> list[int]:
    """The rounds the slider stops at: the first ones, then ever further apart, and the last.

    >>> frame_rounds(100, 8)
    [1, 2, 4, 7, 14, 27, 52, 100]
    """
    if rounds < 1:
        return []
    return sorted({round(rounds ** (step / (most - 1))) for step in range(most)})


def pack(views: Sequence[tuple[int, Plan, list[Frame]]]) -> list[dict[str, Any]]:
    """What the page needs of each entry, from its number, the plan of its model and its frames.

    Grids are pooled to ever smaller ones until all of them together fit.
    """
    side, packed = 2 * MAX_SIDE, None
    while packed is None or (side > MIN_SIDE and _bytes(packed) > MAX_BYTES):
        side //= 2
        packed = [{"entry": entry, **_pack(plan, frames, side)} for entry, plan, frames in views]
    return packed


def pool(grid: Tensor, side: int) -> Tensor:
    """Means over equal blocks, so that no dimension exceeds `side`.

    >>> pool(torch.tensor([[1, 3, 5, 7]]), 2).tolist()
    [[2.0, 6.0]]
    """
    found = grid.double().numpy()
    for dim, size in enumerate(found.shape):
        if size > side:
            starts = np.arange(side) * size // side
            sizes = np.diff(starts, append=size)
            found = np.add.reduceat(found, starts, axis=dim) / np.expand_dims(sizes, 1 - dim)
    return torch.from_numpy(found)


def quantise(share: np.ndarray[Any, Any]) -> bytes:
    """Shares of [0, 1] as bytes: 0 means never, and only never; 1 … 255 are evenly spaced on (0, 1].

    >>> list(quantise(np.array([0.0, 1e-9, 0.5, 1.0])))
    [0, 1, 128, 255]
    """
    return bytes(np.ceil(share * 255).clip(0, 255).astype(np.uint8))


def _pack(plan: Plan, frames: list[Frame], side: int) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name in frames[-1].grids:
        pooled = [(pool(frame.grids[name], side) / max(1, frame.updates)).numpy() for frame in frames]
        shown[name] = {
            "shape": list(plan.shapes[name][:2]),
            "cells": list(pooled[0].shape),
            "frames": base64.b64encode(zlib.compress(b"".join(map(quantise, pooled)))).decode(),
        }
    return {
        "first": best_layer(plan, list(shown)),
        "left_out": len(layers(plan, len(plan.axes))) - len(shown),
        "rounds": [frame.round for frame in frames],
        "updates": [frame.updates for frame in frames],
        "share": [frame.share for frame in frames],
        "evenness": [frame.evenness for frame in frames],
        "layers": shown,
    }


def _bytes(packed: Sequence[dict[str, Any]]) -> int:
    return sum(3 * len(layer["frames"]) // 4 for view in packed for layer in view["layers"].values())


def _grid(counts: Tensor, shape: Sequence[int]) -> Tensor:
    """Rows out, columns in; further dimensions are trained alike unless they are sliced, then averaged."""
    flat = counts.double().flatten(2).mean(2) if counts.dim() > 2 else counts
    return flat.expand(shape[0], shape[1])


def _evenness(counts: dict[str, Tensor], plan: Plan) -> tuple[float, float]:
    """The share of all weights of the model that were trained at least once, and Jain's index of the counts."""
    total = trained = mean = square = 0.0
    for name, held in counts.items():
        weights = math.prod(plan.shapes[name])
        values = held.double()
        total += weights
        trained += float((held > 0).double().mean()) * weights
        mean += float(values.mean()) * weights
        square += float(values.square().mean()) * weights
    return trained / total, mean**2 / (square * total) if square else 0.0


def _spread(names: list[str], most: int) -> list[str]:
    if len(names) <= most or most < 1:
        return names[: max(0, most)]
    return [names[position] for position in np.linspace(0, len(names) - 1, most).round().astype(int)]
