"""What stands in the zoo: a model, the same class at half width, and the plan an engineer expects of it.

Every model class takes its widths as arguments, so `Case.half` is what one would have written by hand for half the
width, and `narrow` can be compared with it. `Case.groups` are the expected sizes of the width groups, derived by hand:
a tracer that freezes too much fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Build = Callable[[], nn.Module]


@dataclass(frozen=True)
class Case:
    """A model, the same at half width, and what a plan of it must contain."""

    full: Build
    half: Build
    inputs: Callable[[], Any]
    groups: list[int]
    """Sizes of the width groups, sorted."""
    whole: Build | None = None
    """Half as many heads of full size, where heads="whole" differs."""
    whole_groups: list[int] | None = None
    couplings: int = 0
    maskable: bool = False
    """A narrow model equals the full one with the dropped units zeroed (no norm across units)."""
    silent: tuple[str, ...] = ()
    """Tensors the output does not depend on (a key bias shifts all scores of a softmax alike)."""
    output: Callable[[Any], Any] | None = None
    stacks: bool = True
    """Whether no shape in its forward pass depends on values, so that several may run as one batch or be captured."""
    stays: str = ""
    """Why more than .34 of the parameters are left at half width, where that is so."""


def images(size: int = 8) -> Callable[[], Tensor]:
    return lambda: torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


def words() -> Tensor:
    return torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(1))


def build(make: Build, seed: int = 0) -> nn.Module:
    """The model in evaluation mode and float64, with every tensor random (fresh biases and norms hold constants)."""
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = make().double().eval()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.3, generator=generator)
                module.running_var.uniform_(0.5, 1.5, generator=generator)
    torch.random.set_rng_state(state)
    return model


def doubled(inputs: Any) -> Any:
    """Example inputs in float64."""
    return inputs.double() if isinstance(inputs, Tensor) and inputs.is_floating_point() else inputs


def run(model: nn.Module, inputs: Any) -> Tensor:
    """The model's (first) output."""
    result = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    return result if isinstance(result, Tensor) else result.logits
