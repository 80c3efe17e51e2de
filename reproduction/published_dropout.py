"""Federated Dropout as the published code of FedRolex draws it: a permutation for every layer and client.

Two layers that write to one residual stream keep different channels, in any order, so that identity shortcuts add
channel 3 to channel 17, at full width, too (docs/decisions/0004). It is no method to use, but may explain the published
numbers: `method.name = "reproduction.published_dropout:METHOD"`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor

from fedwidth.core.index import Index
from fedwidth.core.rectangles import Rectangles
from fedwidth.methods.definition import ROUNDING, Method, Moment
from fedwidth.plan.axis import groups_of, positions
from fedwidth.plan.plan import Plan
from fedwidth.randomness import numpy_generator

SHORTCUT = "shortcut"
"""A convolution in place of an identity shortcut, which keeps what its block's last layer keeps."""


class Permuted(Index):
    """An index whose positions may be in any order, also where all are kept."""

    @cached_property
    def is_whole(self) -> bool:
        """False: a permutation of all units is not the whole model as it is."""
        return False

    @cached_property
    def _sliced(self) -> dict[str, tuple[int, ...]]:
        axes = self.plan.axes
        return {name: tuple(dim for dim, axis in enumerate(axes[name]) if groups_of(axis)) for name in axes}

    def pieces(self, name: str) -> Rectangles | None:
        """None but for tensors that are not sliced: positions in any order are no rectangles."""
        return None if self.sliced(name) else super().pieces(name)


def choose(plan: Plan, counts: Mapping[str, int], at: Moment) -> Index:
    """Every layer that writes units draws them; a layer reads those that the last writer of a group has drawn."""
    generator = numpy_generator(at.seed, "layers", at.round, at.client)
    latest: dict[str, Tensor] = {}
    of_layer: dict[str, tuple[dict[str, Tensor], dict[str, Tensor]]] = {}  # what it writes, and what it reads
    kept = {}
    for name, axes in plan.axes.items():
        layer = name.rpartition(".")[0]
        if layer not in of_layer:  # its weight, which comes first
            read = dict(latest)
            for group in groups_of(axes[0]) if len(axes) > 1 and not layer.endswith(SHORTCUT) else ():
                drawn = generator.permutation(plan.groups[group].size)[: counts[group]]
                latest[group] = torch.from_numpy(drawn)
            of_layer[layer] = dict(latest), read
        written, read = of_layer[layer]
        kept[name] = tuple(positions(axis, read if dim else written) for dim, axis in enumerate(axes))
    return Permuted(plan, kept, counts=counts)


METHOD = Method(
    name="published_dropout",
    title="Federated Dropout, a draw for every layer",
    paper="Caldas et al. 2018",
    equation="the published code of FedRolex",
    choose=choose,
    options={"rounding": ROUNDING},
)
