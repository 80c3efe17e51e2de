"""Making a slot for the sub-models of one size."""

from __future__ import annotations

from fedwidth.core.part import Part
from fedwidth.engines.flat.tensor_layout import Shapes, TensorLayout
from fedwidth.engines.slots.slot import Slot
from fedwidth.models import fuse_norms, set_scaler
from fedwidth.training.client import Trainer

MAX_CHANNELS_FIRST = 128
"""The number of channels up to which the GPU's convolutions in single precision are faster with channels first:
PreResNet18 at 1/16 of its width by a fifth, at 1/8 by an eighth, at 1/4 by a sixteenth."""


def channels_last(trainer: Trainer, shapes: Shapes) -> bool:
    """Whether the channels of convolutions lie last in the memory of sub-models whose tensors have these shapes."""
    if trainer.device.type == "cuda" and trainer.settings.precision != "bf16":
        widest = max((max(shape[:2]) for shape in shapes.values() if len(shape) == 4), default=0)
        return widest > MAX_CHANNELS_FIRST and trainer.takes_channels_last
    return trainer.takes_channels_last


def make_slot(trainer: Trainer, part: Part, sub: TensorLayout, rate: float) -> Slot:
    """A slot for sub-models of the size of a part."""
    module = part.module(trainer.model, trainer.plan).to(trainer.device)
    set_scaler(module, rate if trainer.settings.training.scaler else 1.0)
    fuse_norms(module, trainer.device)
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
