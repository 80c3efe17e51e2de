"""The forward passes a trace watches: one in evaluation mode, and one or more as in training.

Auxiliary heads, masking of inputs and stochastic depth exist only in training mode. Where code draws at random which
way it goes, the pass is repeated with other draws, so that a layer that is used now and then is seen.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from fedwidth.errors import PlanError
from fedwidth.plan.follow import SizeMode, follow_attributes
from fedwidth.plan.formulas import Held
from fedwidth.plan.isolation import at_least_two, call, picked, plain_operators, seed_everything, set_mode, untouched
from fedwidth.plan.recording import AxisMode, Recording, tensors_in
from fedwidth.plan.rules import handler
from fedwidth.plan.statements import STATEMENTS
from fedwidth.plan.uses import USES

DRAWS = 5
"""How many training passes are watched where the model's way depends on what it draws."""


@dataclass(frozen=True)
class Passed:
    """What one forward pass showed beside the axes."""

    attributes: dict[Held, int]
    """The integer attributes that were followed, and their values."""
    outputs: list[Tensor]
    """The tensors of the model's output that count."""


def watch(
    model: nn.Module, inputs: Any, recording: Recording, output: Callable[[Any], Any] | None, *, training: bool
) -> Iterator[Passed]:
    """Run the model in evaluation mode, then (with `training`) in training mode, each time under the recording."""
    yield _one(model, inputs, recording, output, training=False)[0]
    if not training:
        return
    doubled = at_least_two(inputs)
    before, recording.looked = recording.looked, False
    for seed in range(DRAWS):
        passed, drew = _one(model, doubled, recording, output, training=True, seed=seed)
        yield passed
        if not (drew or recording.looked):
            break
    recording.looked |= before


def _one(
    model: nn.Module,
    inputs: Any,
    recording: Recording,
    output: Callable[[Any], Any] | None,
    *,
    training: bool,
    seed: int = 0,
) -> tuple[Passed, bool]:
    """One forward pass, after which the model is as it was, and whether Python code drew random numbers in it."""
    for tensor in tensors_in(inputs):
        recording.put_fixed(tensor, "model input")
    recording.protect(tensors_in(inputs))
    recording.evidence.begin(tensors_in(inputs), dict(model.named_buffers(remove_duplicate=False)))
    with untouched(model):
        try:
            set_mode(model, training=training)
            seed_everything(seed)
            before = _generators()
            with plain_operators(model):
                values = follow_attributes(model, recording)
                with AxisMode(recording, handler), SizeMode(recording, STATEMENTS, USES):
                    result = call(model, inputs)
            drew = _generators() != before
        except Exception as error:
            mode = " in training mode" if training else ""
            raise PlanError(f"the model failed on the example inputs{mode}: {error}") from error
        finally:
            recording.restore()
    outputs = list(tensors_in(picked(result, output)))
    if not outputs:
        raise PlanError("the model's output holds no tensor; pass output= to say which part of it counts")
    return Passed(values, outputs), drew


def _generators() -> tuple[Any, ...]:
    """The state of the generators of Python and NumPy."""
    numpy = np.random.get_state(legacy=False)["state"]
    return random.getstate(), numpy["pos"], numpy["key"].tobytes()
