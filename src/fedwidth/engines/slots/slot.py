"""A place on the device where one client at a time trains: a module, its vectors, and its captured step.

All tensors keep their addresses, so that a CUDA graph of the step (forward, backward, clipping, optimiser: hundreds of
kernels) can be captured once and replayed for every client and batch. The optimiser works on the one vector the
parameters are views of, instead of on a hundred tensors.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock

import torch
from torch import Tensor, nn

from fedwidth.engines.capture import Place, record
from fedwidth.engines.faults import out_of_memory
from fedwidth.engines.flat.layout import SubLayout
from fedwidth.engines.flat.vectors import changed_by_steps, fill, make_vectors, reset, take_over
from fedwidth.objectives import Objective
from fedwidth.settings import TrainingSettings
from fedwidth.training.gpu import autocast
from fedwidth.training.loss import Pass, loss_of
from fedwidth.training.rule import Rule
from fedwidth.training.step import report_of, take_step

MAX_GRAPHS = 3
"""Batch sizes captured per slot (the full batch and common last batches); rarer ones run without a graph."""

DRAWING = Lock()
"""Layers draw from one generator of the device; who lends it another one must be alone."""


class Slot:
    """One client's training, on its own stream."""

    def __init__(
        self,
        module: nn.Module,
        sub: SubLayout,
        settings: TrainingSettings,
        rule: Rule,
        *,
        objective: Objective,
        capacity: float,
        classes: int,
        device: torch.device,
        precision: str,
    ) -> None:
        self.module, self.sub, self.settings, self.precision = module.train(), sub, settings, precision
        self.rule, self.device = rule, device
        self.names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        self.unused: list[str] = []
        dtype = sub.layout.dtype
        self.weights = make_vectors((sub.size,), sub, self.names, rule, settings, dtype=dtype, device=device)
        self.flat = self.weights.values[0]
        self.loss_sum = torch.zeros((), dtype=dtype, device=device)
        self.absent = torch.zeros(classes, dtype=torch.bool, device=device)
        self.client = Pass(self.module, self.absent, settings.mask, rule.options, capacity, objective)
        views = sub.views(self.flat)
        _adopt(module, views)
        self.others = {name: buffer for name, buffer in module.named_buffers() if name not in views}
        """Buffers of other dtypes, which are not in the vector."""
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        vector = self.weights.gradients[0]
        assert vector is not None
        gradients = sub.views(vector)
        self.gradients = [gradients[name] for name in self.names]
        self.generator = torch.Generator(device)
        """What layers (dropout) draw from: one for each slot, so that the order of launches does not matter."""
        self.place = Place.on(device)
        self.graphs: dict[int, tuple[Tensor, Tensor, torch.cuda.CUDAGraph]] = {}
        """By batch size: where the step reads its batch and targets, and the captured step."""

    def begin(
        self,
        flat: Tensor,
        *,
        learning_rate: float,
        absent: Tensor | None,
        seed: int = 0,
        others: Mapping[str, Tensor] | None = None,
        sent: Mapping[str, Tensor] | None = None,
        steps: int = 1,
    ) -> None:
        """Take over a client: its sub-model, the round's learning rate, the classes it lacks, the seed of its draws."""
        take_over(self.weights, flat, [sent] if sent else [])
        for name, value in (others or {}).items():
            self.others[name].copy_(value)
        self.generator.manual_seed(seed)
        reset(self.weights)
        self.loss_sum.zero_()
        self._rate, self._others = learning_rate, dict(others or {})
        if self.rule.keeps_start:
            fill(self.weights.learning_rate, learning_rate)
            fill(self.weights.local_steps, steps)
        self._set(rate=learning_rate, share=0.0)
        if absent is None:
            self.absent.zero_()
        else:
            self.absent.copy_(absent)

    def is_prepared(self, batches: Sequence[tuple[Tensor, Tensor]]) -> bool:
        """Whether `prepare` would have nothing to do."""
        sizes = {len(batch) for batch, _ in batches}
        return self.place.stream is None or len(self.graphs) >= MAX_GRAPHS or sizes <= self.graphs.keys()

    def prepare(self, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Capture the steps these batches need, as far as that is worth it."""
        if self.place.stream is None:
            return
        for batch, answers in batches:
            size = len(batch)
            if size not in self.graphs and len(self.graphs) < MAX_GRAPHS:
                held = batch.clone(), answers.clone()
                with self._drawing():
                    self.graphs[size] = (*held, self._capture(*held))

    def why_not_capture(self, batch: Tensor, answers: Tensor) -> str | None:
        """Why the step cannot be captured, or None; the slot is of no further use."""
        try:
            with self._drawing():
                self._step(batch, answers)  # the first one may wait, to set things up
                host = torch.random.get_rng_state(), random.getstate()
                with _no_waiting():
                    self._step(batch, answers)
            if not torch.equal(torch.random.get_rng_state(), host[0]) or random.getstate() != host[1]:
                return "it draws at random on the processor, which a captured step would not repeat"
            with self._drawing():
                self._capture(batch, answers)
        except Exception as error:  # a model may do anything in its forward pass
            if out_of_memory(error):
                raise
            message = str(error).partition("\n")[0]
            return f"its step cannot be captured ({type(error).__name__}: {message})"
        return None

    def train_all(self, batches: Sequence[tuple[Tensor, Tensor]], probes: int = 0) -> None:
        """One local step on each of these batches; on the first ones only the gradient is gathered."""
        if probes:
            samples = sum(len(batch) for batch, _ in batches[:probes])
            for batch, answers in batches[:probes]:
                with self.place.queue():
                    self._set(rate=0.0, share=len(batch) / samples)
                self._train([(batch, answers)])
            with self.place.queue():  # what layers counted on the way is forgotten, and so are momentum and losses
                self.flat.copy_(self.weights.start[0])
                for name, value in self._others.items():
                    self.others[name].copy_(value)
                reset(self.weights, gathered=False)
                self.loss_sum.zero_()
                self._set(rate=self._rate, share=0.0)
        self._train(batches[probes:])

    def reports(self) -> dict[str, Tensor]:
        """What the trained client reports beside its sub-model, as vectors."""
        found = report_of(self.weights, self.rule, self.client.capacity)
        return {name: vectors[0] for name, vectors in found.items()}

    def _set(self, *, rate: float, share: float) -> None:
        """Fill the numbers a captured step reads."""
        fill(self.weights.rate, rate)
        if self.rule.probes:
            fill(self.weights.share, share)

    def _train(self, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        if self.place.stream is None:
            with self._drawing():
                for batch, answers in batches:
                    self._step(batch, answers)
            return
        with self.place.queue():
            for batch, answers in batches:
                if len(batch) not in self.graphs:
                    with self._drawing():
                        self._step(batch, answers)
                    continue
                held_batch, held_answers, graph = self.graphs[len(batch)]
                held_batch.copy_(batch)
                held_answers.copy_(answers)
                graph.replay()

    def _capture(self, inputs: Tensor, targets: Tensor) -> torch.cuda.CUDAGraph:
        """Record the step. The one before really trains, so all it changes is put back afterwards."""
        held = [*changed_by_steps(self.weights), self.loss_sum, *self.others.values()]
        before = [tensor.clone() for tensor in held]
        drawn = self.generator.get_state()
        self._step(inputs, targets)  # libraries set themselves up, which cannot be captured
        graph = record(lambda: self._step(inputs, targets), self.place)
        for tensor, value in zip(held, before, strict=True):
            tensor.copy_(value)
        self.generator.set_state(drawn)
        return graph

    def _step(self, inputs: Tensor, targets: Tensor) -> None:
        if self.sub.channels_last and inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        with autocast(self.device, self.precision):
            loss = loss_of(self.rule, self.client, inputs, targets)
        found = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        with torch.no_grad():
            torch._foreach_copy_(self.gradients, self._filled(found))
            self.loss_sum += loss.detach()
            take_step(self.weights, self.rule, self.settings, self.client.capacity)

    def _filled(self, found: Sequence[Tensor | None]) -> list[Tensor]:
        """Gradients with zeros for parameters the loss does not depend on, which then keep their values.

        As in PyTorch's optimisers: not even weight decay moves them.
        """
        unused = [name for name, gradient in zip(self.names, found, strict=True) if gradient is None]
        if unused != self.unused:  # in the first step; a captured one finds the mark it needs
            self.unused = unused
            used = [name for name in self.names if name not in unused]
            self.weights.trainable = self.sub.mark(used).to(self.device)
        return [torch.zeros_like(own) if new is None else new for own, new in zip(self.gradients, found, strict=True)]

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """Within it, layers draw from the slot's generator instead of the device's."""
        with DRAWING:
            if self.device.type == "cuda":
                device = torch.cuda.default_generators[self.device.index or 0]
                own = device.graphsafe_get_state()
                device.graphsafe_set_state(self.generator)  # shared, not copied: a graph captured now draws from it
                try:
                    yield
                finally:
                    device.graphsafe_set_state(own)
            else:
                with torch.random.fork_rng(devices=[]):
                    torch.default_generator.set_state(self.generator.get_state())
                    yield
                    self.generator.set_state(torch.default_generator.get_state())


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Within it, whatever makes the processor wait for the GPU raises: a captured step must not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says that this does not find everything
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


def _adopt(module: nn.Module, views: dict[str, Tensor]) -> None:
    """Make parameters and buffers of a module views of a vector; tied ones follow their first name."""
    for name, parameter in module.named_parameters():
        parameter.data = views[name]
    for name, _ in module.named_buffers():
        if name in views:
            owner, _, leaf = name.rpartition(".")
            module.get_submodule(owner)._buffers[leaf] = views[name]
