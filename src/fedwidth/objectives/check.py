"""An objective tried on a model and its data before anything is trained: whatever does not fit is said in one line."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedwidth.data import Data
from fedwidth.data.records import moved
from fedwidth.data.trees import count, describe, leaves
from fedwidth.errors import FedwidthError, OptionError, PlanError
from fedwidth.importing import what_failed
from fedwidth.objectives.objective import Objective
from fedwidth.objectives.output import call
from fedwidth.plan.isolation import untouched


def check_objective(objective: Objective, model: nn.Module, data: Data) -> None:
    """Try loss and metric on the first samples: the loss is one number with a gradient, the metric a few a sample."""
    inputs, targets = moved(data.example(), "cpu"), moved(data.example_targets(), "cpu")
    with untouched(model), torch.no_grad():
        for module in model.modules():
            module.training = False
        try:
            result = call(model, inputs)
        except FedwidthError:
            raise
        except Exception as error:  # a model may do anything
            said = f"{what_failed(error)}{_of_double(inputs, error)}"
            raise PlanError(f"the model failed on the example inputs {describe(inputs)}: {said}") from error
    output = objective.output(result)
    objective.check(output, targets, data)
    _check_loss(objective, output, targets)
    _check_metric(objective, output, targets)


def _of_double(inputs: Any, error: Exception) -> str:
    """What to do where inputs of numpy's or pandas' precision met weights of PyTorch's."""
    met = "double" in str(error).lower() and any(leaf.dtype == torch.float64 for leaf in leaves(inputs))
    return "; inputs are float64, weights float32 unless a model says so: give inputs as .float()" if met else ""


def _check_loss(objective: Objective, output: Any, targets: Any) -> None:
    name = f"the loss of {objective.title}"
    if isinstance(output, Tensor):
        output = output.detach().requires_grad_(output.is_floating_point())
    with torch.enable_grad():
        loss = _tried(name, lambda: objective.loss(output, targets))
    check_one_number(name, loss)
    if isinstance(output, Tensor) and not loss.requires_grad:
        raise OptionError(f"{name} does not depend on the model's output, so nothing would be learnt")
    plain = isinstance(output, Tensor) and bool(torch.isfinite(output).all())
    if plain and not torch.isfinite(loss) and int(objective.number(targets)):  # where no target counts there is no mean
        raise OptionError(f"{name} is {loss.item()} on the first samples, so nothing could be learnt")


def check_one_number(name: str, loss: Any) -> None:
    """Refuse a loss that is no tensor of one number; `name` is what it is called."""
    if not isinstance(loss, Tensor) or loss.dim():
        shape = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise OptionError(f"{name} must be one number, the mean over the batch, not {shape}")


def _check_metric(objective: Objective, output: Any, targets: Any) -> None:
    name, samples = f"the metric {objective.metric.name}", count(targets)
    with torch.no_grad():
        counts = _tried(name, lambda: objective.metric.counts(output, targets))
    if not isinstance(counts, Tensor) or counts.dim() != 2 or len(counts) != samples:
        shape = list(counts.shape) if isinstance(counts, Tensor) else type(counts).__name__
        raise OptionError(f"{name} must give one number for each of {samples} samples, not {shape}")
    value = _tried(name, lambda: objective.metric.of(counts.sum(0)))
    if not isinstance(value, Tensor) or value.dim():
        raise OptionError(f"{name} must be one number for all samples")


def _tried(name: str, function: Any) -> Any:
    try:
        return function()
    except FedwidthError:
        raise
    except Exception as error:  # a function of the user's own may do anything
        raise OptionError(f"{name} fails on the first samples: {what_failed(error)}") from error
