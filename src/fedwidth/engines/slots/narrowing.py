"""The narrower sub-models inside the one in a slot, for rules whose steps draw a width."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from fedwidth.core.index import Index
from fedwidth.core.part import Part
from fedwidth.models import fuse_norms, set_scaler
from fedwidth.plan.isolation import Attributes
from fedwidth.training.client import Trainer
from fedwidth.training.loss import Pass
from fedwidth.training.narrower import Narrower, narrower_index


@dataclass
class SlotPass(Pass):
    """The pass of the client in a slot, which knows narrower sub-models."""

    _narrower: dict[float, Narrower] = field(default_factory=dict)
    _places: dict[float, tuple[str, str]] = field(default_factory=dict)
    """Which sub-model each of them is, and in which it lies."""
    _attributes: dict[float, Attributes] = field(default_factory=dict)
    """How their modules were before the first client."""

    def place(self, trainer: Trainer, part: Part, round: int, widths: Iterable[float]) -> None:
        """Let the narrower sub-models of these widths lie in the client's part as they do in this round."""
        for width in sorted({width for width in widths if width < self.capacity}):
            assert isinstance(part, Index), "rules with widths refuse parts that are no slices"
            inner, outer = narrower_index(trainer, width, round), part
            place = inner.key, outer.key
            if width not in self._narrower:
                module = _module(trainer, inner, width)
                self._narrower[width] = Narrower(module, inner, outer, trainer.device)
                self._attributes[width] = Attributes(module)
            elif self._places[width] != place:
                self._narrower[width].move(inner, outer)
            if trainer.device.type == "cpu":  # captured steps run no code that could leave something in attributes
                self._attributes[width].put_back()
            self._places[width] = place

    def running(self, width: float) -> nn.Module:
        """The module whose code a step of this width runs."""
        return self._narrower[width].module if width in self._narrower else self.module

    def narrower(self, width: float, inputs: Any) -> Any:
        """Forward through the sub-model of this width: its weights are slices of the client's."""
        return self.objective.output(self._narrower[width](self.module, inputs))


def _module(trainer: Trainer, index: Index, width: float) -> nn.Module:
    """A module of the narrower sub-model's size, in training mode."""
    made = index.module(trainer.model, trainer.plan).to(trainer.device)
    set_scaler(made, width if trainer.settings.training.scaler else 1.0)
    fuse_norms(made, trainer.device)
    return made.train()
