"""Making a slot for the sub-models of one size."""

from __future__ import annotations

from collections.abc import Mapping

from fedwidth.core.index import Index
from fedwidth.core.narrow import skeleton
from fedwidth.engines.flat.layout import SubLayout
from fedwidth.engines.slots.slot import Slot
from fedwidth.models import set_scaler
from fedwidth.training.client import Trainer

MAX_CHANNELS_FIRST = 128
"""The number of channels up to which the GPU's convolutions in single precision are faster with channels first:
PreResNet18 at 1/16 of its width by a fifth, at 1/8 by an eighth, at 1/4 by a sixteenth."""


def channels_last(trainer: Trainer, index: Index) -> bool:
    """Whether the channels of convolutions lie last in the memory of sub-models with the size of an index."""
    if trainer.device.type == "cuda" and trainer.settings.precision != "bf16":
        widest = max((max(shape[:2]) for shape in index.shapes.values() if len(shape) == 4), default=0)
        return widest > MAX_CHANNELS_FIRST and trainer.takes_channels_last
    return trainer.takes_channels_last


def make_slot(trainer: Trainer, counts: Mapping[str, int], sub: SubLayout, rate: float) -> Slot:
    """A slot for sub-models that keep so many units of each group."""
    module = skeleton(trainer.model, trainer.plan, counts).to(trainer.device)
    set_scaler(module, rate if trainer.settings.training.scaler else 1.0)
    return Slot(
        module,
        sub,
        trainer.settings.training,
        trainer.rule,
        objective=trainer.objective,
        capacity=rate,
        classes=trainer.data.classes,
        device=trainer.device,
        precision=trainer.settings.precision,
    )
