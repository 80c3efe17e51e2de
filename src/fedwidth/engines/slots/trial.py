"""Finding out whether a model's training step can be captured: not every one can, and none says so beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from fedwidth.core.part import Part
from fedwidth.core.submodel import State, state_of
from fedwidth.data.records import moved
from fedwidth.engines.flat.parts import PartCohort, PartLayout
from fedwidth.engines.memory import out_of_memory
from fedwidth.engines.slots.making import channels_last, make_slot
from fedwidth.gpu import on_gpu
from fedwidth.training.client import Trainer
from fedwidth.training.loss import with_rows


def try_capture(trainer: Trainer) -> str | None:
    """Capture one step of what clients may hold on a GPU; the reason why that does not work, or None."""
    if trainer.device.type != "cuda":
        return None
    try:
        with on_gpu(trainer.device):
            state = state_of(trainer.model)
            reasons = (_try_capture(trainer, part, state) for part in trainer.example_parts(state))
            return next((reason for reason in reasons if reason), None)
    except Exception as error:
        if not out_of_memory(error):
            raise
        return None  # clients are narrower, and slots know how to do with less


def _try_capture(trainer: Trainer, part: Part, state: State) -> str | None:
    """Capture one step of what a client holds, on the trainer's device; the reason why that does not work, or None."""
    device = trainer.device
    sub = PartLayout(part, trainer, partial(channels_last, trainer))
    start, others = PartCohort(part, sub).cut(state, trainer)
    inputs, targets = moved(trainer.data.example(), device), moved(trainer.data.example_targets(), device)
    targets = with_rows(trainer.rule, targets, {})
    slot = make_slot(trainer, part, sub, rate=1.0)
    with slot.stream.queue():
        sent = {
            name: sub.vector(value, device) if isinstance(value, Mapping) else start.new_tensor(float(value))
            for name, value in trainer.example_sends(state).items()
        }
        slot.begin(start, learning_rate=0.0, absent=None, others=others, sent=sent)
        widths = [1.0] if trainer.rule.local.widths is None else trainer.rule.local.widths(1.0, trainer.rule.options)
        slot.client.place(trainer, part, 0, widths)
        reasons = [slot.why_not_capture(inputs, targets, width) for width in widths]
    torch.cuda.synchronize(device)
    return next((reason for reason in reasons if reason), None)
