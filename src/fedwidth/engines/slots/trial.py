"""Finding out whether a model's training step can be captured: not every one can, and none says so beforehand."""

from __future__ import annotations

import torch

from fedwidth.core.index import Index
from fedwidth.core.submodel import state_of
from fedwidth.engines.flat.layout import Layout, SubLayout, cut_sent
from fedwidth.engines.flat.vectors import changed_by_training
from fedwidth.engines.memory import out_of_memory
from fedwidth.engines.slots.making import channels_last, make_slot
from fedwidth.training.client import Trainer
from fedwidth.training.gpu import on_gpu


def try_capture(trainer: Trainer) -> str | None:
    """Capture one step of the whole model on a GPU; the reason why that does not work, or None."""
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
    """Capture one step on the trainer's device; the reason why that does not work, or None."""
    state = state_of(trainer.model)
    index = Index.whole(trainer.plan)
    layout = Layout(trainer.plan, state, next(trainer.model.parameters()).dtype)
    sub = SubLayout(layout, index, trainer.device, channels_last=channels_last(trainer, index))
    inputs = trainer.data.example()
    targets = trainer.data.train.targets[: len(inputs)].long()
    slot = make_slot(trainer, index.counts, sub, rate=1.0)
    with slot.stream.queue():
        others = {name: state[name] for name in changed_by_training(trainer.model, layout.others)}  # positions, counts
        positions = sub.positions(index)
        sent = {name: cut_sent(value, layout, positions) for name, value in trainer.example_sends(state).items()}
        start = layout.flatten(state).flat[positions]
        slot.begin(start, learning_rate=0.0, absent=None, others=others, sent=sent)
        reason = slot.why_not_capture(inputs, targets)
    torch.cuda.synchronize(trainer.device)
    return reason
