"""The forward passes a trace watches: one in evaluation mode, and one or more as in training.

Auxiliary heads, masking of inputs and stochastic depth exist only in training mode. Where code draws at random which
way it goes, the pass is repeated with other draws, so that a layer that is used now and then is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fedwidth.errors import PlanError
from fedwidth.importing import where_failed
from fedwidth.plan.formulas import Held
from fedwidth.plan.isolation import (
    at_least_two,
    batch_size,
    call,
    picked,
    plain_operators,
    set_mode,
    untouched,
)
from fedwidth.plan.node import INPUT, Node
from fedwidth.plan.rules import handler
from fedwidth.plan.watching.follow import SizeMode
from fedwidth.plan.watching.held import followed_attributes
from fedwidth.plan.watching.recording import AxisMode, Recording, tensors_in
from fedwidth.plan.watching.statements import STATEMENTS
from fedwidth.plan.watching.uses import USES
from fedwidth.randomness import host_state, seed_all

DRAWS = 5
"""How many training passes are watched where the model's way depends on what it draws."""


@dataclass(frozen=True)
class Passed:
    """What one forward pass showed beside the axes."""

    attributes: dict[Held, int]
    """The integer attributes that were followed, and their values."""
    outputs: list[list[Node]]
    """The axes of the tensors in the model's output that count."""
    samples: int
    drew: bool
    """Whether Python code drew random numbers."""


class Watch:
    """Runs a model under a recording, and leaves it as it was."""

    def __init__(self, model: nn.Module, recording: Recording, output: Callable[[Any], Any] | None) -> None:
        self.model, self.recording, self.output = model, recording, output

    def passes(self, inputs: Any, *, training: bool) -> Iterator[Passed]:
        """A pass in evaluation mode, then (with `training`) in training mode."""
        recording = self.recording
        recording.tally.counting = True
        yield self._one(inputs)
        recording.tally.counting = False
        if not training:
            return
        doubled, before = at_least_two(inputs), recording.looked
        recording.looked = False
        for seed in range(DRAWS):
            passed = self._first_training(doubled) if not seed else self._one(doubled, training=True, seed=seed)
            yield passed
            if not (passed.drew or recording.looked):
                break
        recording.looked |= before

    def _first_training(self, inputs: Any) -> Passed:
        """A training pass that also shows what autograd keeps, unless the model can only run without gradients."""
        stated = self.recording.constraints.equations
        before = len(stated)
        try:
            with self.recording.tally.keeping([*self.model.parameters(), *self.model.buffers()]):
                return self._one(inputs, training=True, gradients=True)
        except PlanError:
            del stated[before:]  # about tensors that nothing was done with
            return self._one(inputs, training=True)

    def _one(self, inputs: Any, *, training: bool = False, seed: int = 0, gradients: bool = False) -> Passed:
        """One forward pass."""
        model, recording = self.model, self.recording
        lasting = [*model.parameters(), *model.buffers()]
        for tensor in tensors_in(inputs):
            recording.put_fixed(tensor, INPUT)
        recording.protect(tensors_in(inputs))
        recording.evidence.begin(tensors_in(inputs), dict(model.named_buffers(remove_duplicate=False)))
        with untouched(model):
            try:
                set_mode(model, training=training)
                seed_all(seed)
                before = host_state()
                with (
                    plain_operators(model, fused_attention=gradients),
                    torch.enable_grad() if gradients else nullcontext(),
                    followed_attributes(model, recording.constraints) as values,
                    AxisMode(recording, handler),
                    SizeMode(recording, STATEMENTS, USES),
                ):
                    result = call(model, inputs)
                drew = host_state() != before
            except Exception as error:
                recording.end_pass(lasting)
                mode = " in training mode" if training else ""
                raise PlanError(
                    f"the model failed on the example inputs{mode}: {error}{where_failed(error)}"
                ) from error
            finally:
                recording.restore()
        outputs = [recording.axes(tensor) for tensor in tensors_in(picked(result, self.output))]
        if not outputs:
            raise PlanError("the model's output holds no tensor; pass output= to say which part of it counts")
        recording.end_pass(lasting)
        return Passed(values, outputs, batch_size(inputs), drew)
