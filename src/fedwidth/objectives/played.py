"""Training steps of an objective that are played without values, to know what they take of a device's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from fedwidth.data import Data
from fedwidth.devices.memory import Memory, training_memory
from fedwidth.devices.needs import MOMENTS
from fedwidth.objectives.objective import Objective
from fedwidth.settings import Settings


def played_loss(objective: Objective, data: Data, batch: int) -> Callable[[Any], Tensor]:
    """The objective's loss of a model's output, with targets of the right shapes that do not matter."""
    targets = data.example_targets()

    def loss(output: Any) -> Tensor:
        wanted = objective.output(output)
        rows = len(wanted) if isinstance(wanted, Tensor) else batch
        where = next((leaf.device for leaf in tree_leaves(wanted) if isinstance(leaf, Tensor)), torch.device("cpu"))
        return objective.loss(wanted, tree_map(lambda t: _of_batch(t, rows, where), targets))

    return loss


def step_memory(objective: Objective, data: Data, settings: Settings) -> Callable[[nn.Module], Memory]:
    """A function (module) -> what training it takes of a processor's memory with these settings.

    The module's values are forgotten. Plain SGD keeps no moments.
    """
    training = settings.training
    plain = training.optimiser == "sgd" and not training.momentum
    moments = 0 if plain else MOMENTS[training.optimiser]
    loss, example = played_loss(objective, data, training.batch_size), data.example()

    def takes(module: nn.Module) -> Memory:
        return training_memory(
            module,
            example,
            batch=training.batch_size,
            moments=moments,
            loss=loss,
            precision=settings.precision,
        )

    return takes


def _of_batch(tensor: Tensor, samples: int, where: torch.device) -> Tensor:
    return torch.zeros((samples, *tensor.shape[1:]), dtype=tensor.dtype, device=where)
