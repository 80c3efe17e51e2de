"""Finding out whether a model can be stacked: not every one can, and none says so beforehand."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from fedwidth.core.part import Part
from fedwidth.core.submodel import State, state_of
from fedwidth.data.records import moved
from fedwidth.data.trees import mapped
from fedwidth.engines.memory import out_of_memory
from fedwidth.engines.stacks.gradients import client_channels_last, gradients_of, ignore_restriding, loss_with
from fedwidth.engines.stacks.layers import can_stack_layers, has_stacked_layers, stack_layers
from fedwidth.engines.stacks.precision import stacked_autocast
from fedwidth.importing import one_line
from fedwidth.plan.isolation import untouched
from fedwidth.plan.trace import tensors_of
from fedwidth.plan.watching.side_effects import side_effect
from fedwidth.training.client import Trainer
from fedwidth.training.loss import Pass, loss_of, with_rows
from fedwidth.training.skeletons import fill


def try_stack(trainer: Trainer) -> str | None:
    """Take the gradient of two stacked copies of the model; the reason why that does not work, or None."""
    return None if stacks_channels_last(trainer) else try_stack_as(trainer, channels_last=False)


def stacks_channels_last(trainer: Trainer) -> bool:
    """Whether images of stacked clients lie with the channels of all clients last: on a GPU, if the model allows it."""
    if trainer.device.type != "cuda" or not can_stack_layers(trainer.model) or not trainer.takes_channels_last:
        return False
    return try_stack_as(trainer, channels_last=True) is None


def try_stack_as(trainer: Trainer, *, channels_last: bool) -> str | None:
    """Take the gradient of two stacked copies with images in one memory format; the reason why not, or None."""
    state = state_of(trainer.model)
    reasons = (_try_part(trainer, part, state, channels_last=channels_last) for part in trainer.example_parts(state))
    return next((reason for reason in reasons if reason), None)


def _try_alone(trainer: Trainer, module: nn.Module, held: State) -> str | None:
    """Let one model answer as it is; the reason why many cannot share what its passes draw or leave behind, or None."""
    inputs = moved(trainer.data.example(), trainer.device)
    targets = with_rows(trainer.rule, moved(trainer.data.example_targets(), trainer.device), {})
    client = _pass_of(trainer, module)

    def answer() -> None:
        loss_of(trainer.rule, client, inputs, targets)

    fill(module, held)
    with untouched(module):
        try:
            answer()
            found = side_effect(module, answer, buffers=True)
        except Exception:  # a model may do anything in its forward pass; the stacked trial says what
            return None
    return None if found is None else f"{found}, and stacked clients take their steps together"


def _pass_of(trainer: Trainer, module: nn.Module) -> Pass:
    return Pass(module, None, "none", trainer.rule.options, 1.0, trainer.objective, module)


def _try_part(trainer: Trainer, part: Part, state: State, *, channels_last: bool) -> str | None:
    """The same for what one client holds."""
    module = part.module(trainer.model, trainer.plan).to(trainer.device).train()
    held = part.cut(state, trainer.plan)
    if (reason := _try_alone(trainer, module, held)) is not None:
        return reason
    if trainer.device.type == "cuda" and can_stack_layers(module):
        stack_layers(module, merge=True)
    names = [name for name, tensor in module.named_parameters() if tensor.requires_grad]
    _, tied = tensors_of(module)
    twice = {name: torch.stack([held[name]] * 2) for name in held if name not in tied}
    own = {name: twice.pop(name) for name in names}
    inputs = moved(trainer.data.example(), trainer.device)
    targets = with_rows(trainer.rule, moved(trainer.data.example_targets(), trainer.device), {})
    x, y = (mapped(lambda tensor: torch.stack([tensor] * 2), tree) for tree in (inputs, targets))
    if channels_last:
        x = client_channels_last(x)
    client = _pass_of(trainer, module)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ignore_restriding()
        failure = ""
        try:
            forward = stacked_autocast(trainer.device, trainer.settings.precision)
            found, _ = gradients_of(
                module, own, twice, x, y, absent=None, client=client, rule=trainer.rule, forward=forward
            )
        except Exception as error:  # a model may do anything in its forward pass
            if out_of_memory(error):
                return None  # clients are narrower, and stacks know how to do with less
            failure = f"{type(error).__name__}: {one_line(error)}"
    if any(str(warning.message).startswith("There is a performance drop") for warning in said):
        return "it has operators that stacked clients would take one after the other"
    if failure:
        return f"the model or its loss cannot be stacked ({failure})"
    if not has_stacked_layers(module):  # `torch.func.grad` gives zeros for what it does not find
        alone = {name: tensor[0].detach().requires_grad_() for name, tensor in own.items()}
        tensors = {**alone, **{name: tensor[0] for name, tensor in twice.items()}}
        loss = loss_with(tensors, client, trainer.rule, inputs, targets)
        found = list(torch.autograd.grad(loss, list(alone.values()), allow_unused=True))
    unused = [name for name, gradient in zip(own, found, strict=True) if gradient is None]
    return f"the loss does not depend on '{unused[0]}', and weight decay would move it all the same" if unused else None
