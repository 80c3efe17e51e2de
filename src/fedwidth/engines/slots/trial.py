"""Making a slot, and finding out whether a model's step can be captured at all."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fedwidth.core.index import Index
from fedwidth.core.narrow import skeleton
from fedwidth.core.submodel import state_of
from fedwidth.engines.faults import out_of_memory
from fedwidth.engines.flat.layout import Layout, SubLayout, cut_sent
from fedwidth.engines.limits import changing
from fedwidth.engines.slots.slot import Slot
from fedwidth.models import set_scaler
from fedwidth.training.client import Trainer
from fedwidth.training.gpu import on_gpu

FEW_CHANNELS = 128
"""Up to here the GPU's convolutions in single precision are faster with channels first: PreResNet18 at 1/16 of its
width by a fifth, at 1/8 by an eighth, at 1/4 by a sixteenth."""


def channels_last(trainer: Trainer, index: Index) -> bool:
    """Whether the channels of convolutions lie last in the memory of sub-models of this size."""
    if trainer.device.type == "cuda" and trainer.settings.precision != "bf16":
        widest = max((max(shape[:2]) for shape in index.shapes.values() if len(shape) == 4), default=0)
        return widest > FEW_CHANNELS and trainer.takes_channels_last
    return trainer.takes_channels_last


def try_capture(trainer: Trainer) -> str | None:
    """Record one step of the whole model on a GPU: not every model can be captured, and none says so beforehand."""
    if trainer.device.type != "cuda":
        return None
    try:
        with on_gpu(trainer.device):
            return _try_capture(trainer)
    except Exception as error:
        if not out_of_memory(error):
            raise
        return None  # clients are narrower, and slots know how to do with less


def _try_capture(trainer: Trainer) -> str | None:
    state = state_of(trainer.model)
    index = Index.whole(trainer.plan)
    layout = Layout(trainer.plan, state, next(trainer.model.parameters()).dtype)
    sub = SubLayout(layout, index, trainer.device, channels_last=channels_last(trainer, index))
    inputs = trainer.data.example()
    targets = trainer.data.train.targets[: len(inputs)].long()
    slot = make_slot(trainer, index.counts, sub, rate=1.0)
    with slot.place.queue():
        others = {name: state[name] for name in changing(trainer.model, layout.others)}  # positions, counts
        where = sub.where(index)
        sent = {name: cut_sent(value, layout, where) for name, value in trainer.example_sends(state).items()}
        start = layout.flatten(state).flat[where]
        slot.begin(start, learning_rate=0.0, absent=None, others=others, sent=sent)
        reason = slot.why_not_capture(inputs, targets)
    torch.cuda.synchronize(trainer.device)
    return reason


def make_slot(trainer: Trainer, counts: Mapping[str, int], sub: SubLayout, rate: float) -> Slot:
    """A slot for sub-models of this size."""
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
