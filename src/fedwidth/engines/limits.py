"""What slots and stacks cannot train, and why."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedwidth.models import StaticBatchNorm2d
from fedwidth.training.client import Trainer


def why_not(trainer: Trainer, *, stacked: bool = True) -> str | None:
    """Why stacks (or, with `stacked` false, slots) cannot train a model, or None where they can.

    Slots train a module as it is, one client each; stacks call it as a function of its tensors, so it must neither
    draw nor keep anything.
    """
    model = trainer.model
    if trainer.data.is_lazy:
        return "its samples are read as they are needed, and these engines hold all of them on the device"
    if not trainer.method.slices:
        return f"the sub-models of {trainer.method.title} are no slices of the model"
    if trainer.rule.local.loss is not None and not trainer.rule.local.steady:
        return f"the loss of {trainer.rule.title} may do something else at every step"
    if len({p.dtype for p in model.parameters()}) > 1:
        return "its parameters have several dtypes"
    for name, module in model.named_modules():
        if isinstance(module, nn.RNNBase) and trainer.device.type == "cuda":
            return f"'{name}' needs its weights in cuDNN's own order, not in one vector with the others"
        if not stacked:
            continue
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            return f"'{name}' draws at random in every step, which stacked clients would do together"
        if draws_attention(module):
            return f"'{name}' drops attention at random in every step, which stacked clients would do together"
        tracks = isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats
        if tracks and not isinstance(module, StaticBatchNorm2d):
            return f"'{name}' tracks running statistics while it trains"
    return None


def changing(model: nn.Module, names: Sequence[str]) -> list[str]:
    """Of these tensors, those that training may change: static batch norms count nothing."""
    static = [name for name, module in model.named_modules() if isinstance(module, StaticBatchNorm2d)]
    return [name for name in names if name.rpartition(".")[0] not in static]


def draws_attention(module: nn.Module) -> bool:
    """Whether attention weights are dropped: that is a number of `nn.MultiheadAttention`, not a layer of its own."""
    return isinstance(module, nn.MultiheadAttention) and module.dropout > 0
