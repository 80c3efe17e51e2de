"""A client's pass through the module that holds its sub-model: the forward pass of whoever trains one client at a time.

It knows the client and the round, so a loss may draw from the client's own randomness and ask for narrower sub-models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from fedwidth.gpu import autocast
from fedwidth.methods import Task
from fedwidth.methods.shared.repeated import Repeated
from fedwidth.models import set_scaler
from fedwidth.objectives.losses import in_single_precision
from fedwidth.randomness import numpy_generator
from fedwidth.training.loss import Pass
from fedwidth.training.narrower import Narrower, narrower_index
from fedwidth.training.skeletons import with_channels_last

if TYPE_CHECKING:
    from fedwidth.data import Data
    from fedwidth.training.client import Trainer


@dataclass
class ModulePass(Pass):
    """A client's pass through the module in a skeleton."""

    trainer: Trainer
    task: Task
    round: int
    names: list[str]
    parameters: list[nn.Parameter]
    """Those that are trained."""
    _generators: dict[str, np.random.Generator] = field(default_factory=dict)
    _narrower: dict[float, Narrower] = field(default_factory=dict)

    @classmethod
    def of(cls, trainer: Trainer, module: nn.Module, task: Task, round: int) -> ModulePass:
        """The pass of a task's client."""
        mask, absent = trainer.settings.training.mask, trainer.absent(task.client)
        trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        options, capacity = trainer.method.values, task.capacity
        found = list(trained), list(trained.values())
        known = (module, absent, mask, options, capacity, trainer.objective, module)
        given = {name: tensor.to(trainer.device) for name, tensor in task.given.items()}
        smoothing = trainer.settings.training.smoothing
        return cls(*known, trainer, task, round, *found, given=given, smoothing=smoothing)

    def logits(self, inputs: Any) -> Any:
        """What counts of the model's answer, in the precision of the settings."""
        with autocast(self.trainer.device, self.trainer.settings.precision):  # not for the backward pass
            return self._precise(super().logits(inputs))

    def _precise(self, answer: Any) -> Any:
        """An answer for losses to read: on a processor autocast leaves logarithms, powers and sums in half precision,
        which on a GPU it computes in single precision."""
        trainer = self.trainer
        halved = trainer.device.type == "cpu" and trainer.settings.precision == "bf16"
        return in_single_precision(answer) if halved else answer

    def repeated(self, step: Callable[..., Tensor], optimiser: Optimizer) -> Callable[..., Tensor]:
        """The same step, to be taken many times: on a GPU it is captured."""
        return Repeated(step, self.module, optimiser, self.trainer.graphs)

    def public_inputs(self, samples: Tensor) -> Any:
        """The inputs of public samples, on the client's device."""
        public = self.trainer.public
        assert public is not None, "a method that needs public data says so"
        return self._inputs(public, samples)[0]

    def own_samples(self, places: Tensor) -> tuple[Any, Any]:
        """The inputs and targets of some of the client's own samples, on its device."""
        return self._inputs(self.trainer.data, self.trainer.partition[self.task.client][places])

    def number_of_samples(self) -> int:
        """How many samples the client has."""
        return len(self.trainer.partition[self.task.client])

    def _inputs(self, data: Data, samples: Tensor) -> tuple[Any, Any]:
        inputs, targets = data.batch(data.train, samples, train=False, device=self.trainer.device)
        return (with_channels_last(inputs) if self.trainer.channels_last else inputs), targets

    def generator(self, purpose: str) -> np.random.Generator:
        """Randomness of this client, round and purpose alone; it goes on from step to step."""
        if purpose not in self._generators:
            seed = self.trainer.settings.seed
            self._generators[purpose] = numpy_generator(seed, purpose, self.round, self.task.client)
        return self._generators[purpose]

    def narrower(self, width: float, inputs: Any) -> Any:
        """Forward through the sub-model of this width: its weights are slices of the client's."""
        trainer = self.trainer
        if width not in self._narrower:
            inner = narrower_index(trainer, width, self.round)
            own = trainer.skeleton(inner) is self.module  # layers too small for the widths to differ
            module = self.module if own else trainer.fresh(inner)
            self._narrower[width] = Narrower(module, inner, self.task.index, trainer.device)
        smaller = self._narrower[width].module
        if trainer.settings.training.scaler:
            set_scaler(smaller, width)
        answer = self._narrower[width](self.module, inputs)
        if smaller is self.module and trainer.settings.training.scaler:
            set_scaler(self.module, self.task.capacity)
        return self._precise(self.objective.output(answer))
