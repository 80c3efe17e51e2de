"""A narrow model as an ExecuTorch program that trains: forward pass, loss and gradients in one graph, for a device.

The runtime's own kernels compute the gradients. In executorch 1.5.1 those of max pooling are wrong, and nothing says
so: therefore one step is tried in the runtime before anything is written, and its gradients are held against PyTorch's.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from fedwidth.core.narrow import copy_model
from fedwidth.errors import OptionError, PlanError
from fedwidth.export.load import Taken
from fedwidth.importing import one_line

MAX_OFF = 1e-3
"""How far a gradient may be off, of the largest number in it."""


class Step(nn.Module):
    """A model with its loss: (inputs, targets) -> the loss, and what counts of the model's answer."""

    def __init__(self, taken: Taken) -> None:
        super().__init__()
        self.model = copy_model(taken.model).train()
        self.objective = taken.objective

    def forward(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss of the batch comes first: its gradients are taken."""
        answer = self.objective.answer(self.model, inputs)
        return self.objective.loss(answer, targets), answer.detach()


def training_program(taken: Taken, batch: int) -> bytes:
    """The program of a training step with batches of this size; its method `forward` takes inputs and targets."""
    from executorch.exir import to_edge
    from torch.export.experimental import _export_forward_backward

    example, targets = taken.data.example(), taken.data.example_targets()
    if not isinstance(example, Tensor) or not isinstance(targets, Tensor):
        raise OptionError("a training program takes one tensor of inputs and one of targets")
    generator = torch.Generator().manual_seed(0)
    inputs = _of_batch(example, batch)
    if inputs.is_floating_point():
        inputs = torch.randn(inputs.shape, generator=generator)
    given = (inputs, _of_batch(targets, batch))
    step = Step(taken)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # all of this is experimental, and says so at every call
        try:
            exported = torch.export.export(step, given, strict=True)
            content = bytes(to_edge(_export_forward_backward(exported)).to_executorch().buffer)
        except Exception as error:  # an operator without a gradient there
            raise PlanError(f"ExecuTorch cannot train this model: {one_line(error)}") from error
        _check_gradients(step, content, given)
    return content


def _check_gradients(step: Step, content: bytes, given: tuple[Tensor, Tensor]) -> None:
    """Refuse a program whose gradients are not PyTorch's."""
    from executorch.extension.training import _load_for_executorch_for_training_from_buffer

    runtime: Any = _load_for_executorch_for_training_from_buffer(content)
    try:
        runtime.forward_backward("forward", given)
        found = runtime.named_gradients()
    except Exception as error:  # a kernel that the runtime does not have
        raise PlanError(f"ExecuTorch cannot train this model: {one_line(error)}") from error
    loss, _ = step(*given)
    loss.backward()
    for name, parameter in step.named_parameters():
        if parameter.grad is None:
            continue
        largest = float(parameter.grad.abs().max())
        if float((found[name] - parameter.grad).abs().max()) > MAX_OFF * max(largest, MAX_OFF):
            raise PlanError(
                f"ExecuTorch would train another model: in one step its gradient of '{name.removeprefix('model.')}'"
                " is not PyTorch's (the one of max pooling is wrong in 1.5.1); without --training it can be used"
            )


def _of_batch(tensor: Tensor, batch: int) -> Tensor:
    return torch.cat([tensor] * (1 + batch // len(tensor)))[:batch].contiguous()
