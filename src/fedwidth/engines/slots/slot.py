"""A slot, in which one client at a time trains on the device: a module, its vectors, and its captured step.

All tensors keep their addresses, so that a CUDA graph of the step (forward, backward, clipping, optimiser: hundreds of
kernels) can be captured once and replayed for every client and batch. The optimiser works on the one vector the
parameters are views of, instead of on a hundred tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby

import torch
from torch import Tensor, nn

from fedwidth.capture import GraphStream, capture_graph, no_waiting
from fedwidth.data.trees import Tree, copy_into, count, mapped, shapes
from fedwidth.engines.flat.tensor_layout import TensorLayout
from fedwidth.engines.flat.vectors import (
    changed_by_steps,
    decaying_names,
    fill,
    make_vectors,
    mask_of,
    reset,
    start_from,
    trained_names,
)
from fedwidth.engines.memory import out_of_memory
from fedwidth.engines.slots.generators import drawing_from
from fedwidth.engines.slots.narrowing import SlotPass
from fedwidth.gpu import autocast
from fedwidth.objectives import Objective
from fedwidth.plan.isolation import Attributes
from fedwidth.plan.watching.side_effects import side_effect
from fedwidth.settings import TrainingSettings
from fedwidth.training.loss import loss_of
from fedwidth.training.rule import Rule
from fedwidth.training.skeletons import Buffers, with_channels_last
from fedwidth.training.step import report_of, take_step

Batches = Sequence[tuple[Tree, Tree]]
"""Inputs and targets of each step."""
Kind = tuple[tuple[torch.Size, ...], float]
"""The shapes of a batch, and a width: steps of one kind are one captured step."""

FIRST_GRAPHS = 3
"""Batch sizes that a slot captures as soon as it meets them: the full batch and the first last batches."""

MAX_GRAPHS = 16
"""Batch sizes captured per slot. Those behind the first ones are captured when they come again, because a capture takes
as long as several steps; until then, and where there are more sizes, steps run without a graph."""


class Slot:
    """Trains one client at a time, on a stream of its own."""

    def __init__(
        self,
        module: nn.Module,
        sub: TensorLayout,
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
        self.names = trained_names(module)
        self.unused: list[str] = []
        dtype = sub.dtype
        self.weights = make_vectors((sub.size,), sub, module, rule, settings, device=device)
        self.flat = self.weights.values[0]
        self.loss_sum = torch.zeros((), dtype=dtype, device=device)
        self.absent = torch.zeros(classes, dtype=torch.bool, device=device)
        absent = None if settings.mask == "none" else self.absent
        known = (self.module, absent, settings.mask, rule.options, capacity, objective, module)
        self.client = SlotPass(*known, smoothing=settings.smoothing)
        views = sub.views(self.flat)
        _make_views(module, views)
        self._buffers = Buffers(module)
        self._attributes = Attributes(module)
        self.others = {name: buffer for name, buffer in module.named_buffers() if name not in views}
        """The module's buffers of other dtypes, which are not in the vector."""
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        vector = self.weights.gradients[0]
        assert vector is not None
        gradients = sub.views(vector)
        self.gradients = [gradients[name] for name in self.names]
        self.generator = torch.Generator(device)
        """The generator that layers (dropout) draw from: each slot has its own, so that the order of launches does not
        matter."""
        self.stream = GraphStream.on(device)
        self.done: torch.cuda.Event | None = None
        """The end of the training that was queued last, until somebody waits for it."""
        self.max_graphs = MAX_GRAPHS
        self.graphs: dict[Kind, tuple[Tree, Tree, torch.cuda.CUDAGraph]] = {}
        """Where a captured step reads its inputs and targets, and the step."""
        self.met: set[Kind] = set()
        """The kinds of the steps that were taken here so far."""

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
        """Begin with a client: its sub-model, the learning rate, the classes it lacks, the seed of its draws."""
        if self.stream.cuda is None:  # captured steps run no code that could leave something in attributes
            self._attributes.put_back()
        start_from(self.weights, flat, [sent] if sent else [])
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

    def kinds(self, batches: Batches, widths: Sequence[float] = ()) -> list[Kind]:
        """The kind of the step on each batch; where no widths are drawn, all train the client's own."""
        own = widths or [self.client.capacity] * len(batches)
        return [(shapes(*batch), width) for batch, width in zip(batches, own, strict=True)]

    def has_captured(self, kinds: Sequence[Kind]) -> bool:
        """Whether `capture_steps` would have nothing to do."""
        return self.stream.cuda is None or not any(map(self._is_to_be_captured, kinds))

    def capture_steps(self, batches: Batches, kinds: Sequence[Kind]) -> None:
        """Capture the steps that these batches need, as far as that is worth it."""
        if self.stream.cuda is None:
            return
        for (inputs, targets), kind in zip(batches, kinds, strict=True):
            if self._is_to_be_captured(kind):
                held = mapped(torch.clone, inputs), mapped(torch.clone, targets)
                self.client.width = kind[1]
                with self._drawing():
                    self.graphs[kind] = (*held, self._capture(*held))
        self.met.update(kinds)

    def _is_to_be_captured(self, kind: Kind) -> bool:
        """Whether steps of this kind are neither captured yet nor of too rare shapes.

        Batches with rows of what clients were given are counted by themselves: in a first round there may be none yet.
        """
        if kind in self.graphs:
            return False
        alike = sum(width == kind[1] and len(held) == len(kind[0]) for held, width in self.graphs)
        return alike < self.max_graphs and (alike < FIRST_GRAPHS or kind in self.met)

    def why_not_capture(self, inputs: Tree, targets: Tree, width: float) -> str | None:
        """The reason why a step of this width cannot be captured, or None; the slot is of no further use."""
        self.client.width = width
        try:
            with self._drawing():
                self._step(inputs, targets)  # the first one may wait, to set things up
                with no_waiting():
                    found = side_effect(self.client.running(width), lambda: self._step(inputs, targets))
            if found is not None:
                return f"{found}, which a captured step would not repeat"
            with self._drawing():
                self._capture(inputs, targets)
            self.stream = self.stream.with_new_memory()  # the graph is gone, and another width may be tried
        except Exception as error:  # a model may do anything in its forward pass
            if out_of_memory(error):
                raise
            message = str(error).partition("\n")[0]
            return f"its step cannot be captured ({type(error).__name__}: {message})"
        return None

    def train_all(self, batches: Batches, kinds: Sequence[Kind], probes: int = 0) -> None:
        """Take one local step on each of these batches; over the first `probes` ones only the gradient is gathered."""
        if probes:
            samples = sum(count(inputs) for inputs, _ in batches[:probes])
            for batch, kind in zip(batches[:probes], kinds, strict=False):
                with self.stream.queue():
                    self._set(rate=0.0, share=count(batch[0]) / samples)
                self._train([batch], [kind])
            with self.stream.queue():  # what layers counted on the way is forgotten, and so are momentum and losses
                self.flat.copy_(self.weights.start[0])
                for name, value in self._others.items():
                    self.others[name].copy_(value)
                reset(self.weights, gathered=False)
                self.loss_sum.zero_()
                self._set(rate=self._rate, share=0.0)
        self._train(batches[probes:], kinds[probes:])

    def reports(self) -> dict[str, Tensor]:
        """What the trained client reports beside its sub-model, as vectors."""
        found = report_of(self.weights, self.rule, self.client.capacity)
        return {name: vectors[0] for name, vectors in found.items()}

    def _set(self, *, rate: float, share: float) -> None:
        """Write the numbers that a captured step reads."""
        fill(self.weights.rate, rate)
        if self.rule.probes:
            fill(self.weights.share, share)

    def _train(self, batches: Batches, kinds: Sequence[Kind]) -> None:
        """Take a step on each batch, a captured one where there is one of its kind."""
        graphs = [self.graphs.get(kind) for kind in kinds]
        with self.stream.queue():
            for captured, steps in groupby(zip(batches, kinds, graphs, strict=True), lambda step: step[2] is not None):
                with nullcontext() if captured else self._drawing():  # once for all: on a CPU it copies a state
                    for (inputs, targets), kind, held in steps:
                        if held is not None:
                            held_inputs, held_targets, graph = held
                            copy_into(held_inputs, inputs)
                            copy_into(held_targets, targets)
                            graph.replay()
                        else:
                            self.client.width = kind[1]
                            self._step(inputs, targets)

    def _capture(self, inputs: Tree, targets: Tree) -> torch.cuda.CUDAGraph:
        """Capture the step. The one before really trains, so all it changes is put back afterwards."""
        held = [*changed_by_steps(self.weights), self.loss_sum, *self.others.values()]
        before = [tensor.clone() for tensor in held]
        drawn = self.generator.get_state()
        self._step(inputs, targets)  # libraries set themselves up, which cannot be captured
        graph = capture_graph(lambda: self._step(inputs, targets), self.stream)
        for tensor, value in zip(held, before, strict=True):
            tensor.copy_(value)
        self.generator.set_state(drawn)
        return graph

    def _step(self, inputs: Tree, targets: Tree) -> None:
        """Take one local step."""
        if self.sub.channels_last:
            inputs = with_channels_last(inputs)
        with autocast(self.device, self.precision):
            loss = loss_of(self.rule, self.client, inputs, targets)
        found = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        with torch.no_grad():
            torch._foreach_copy_(self.gradients, self._filled(found))
            self.loss_sum += loss.detach()
            take_step(self.weights, self.rule, self.settings, self.client.capacity)
        self._buffers.settle()

    def _filled(self, found: Sequence[Tensor | None]) -> list[Tensor]:
        """Gradients with zeros for parameters the loss does not depend on, which then keep their values.

        As in PyTorch's optimisers: not even weight decay moves them.
        """
        unused = [name for name, gradient in zip(self.names, found, strict=True) if gradient is None]
        if unused != self.unused:  # in the first step; a captured one finds the mark it needs
            self.unused = unused
            decaying = decaying_names(self.module)
            self.weights.trainable, self.weights.decaying = (
                mask_of(self.sub, [name for name in names if name not in unused], self.device)
                for names in (self.names, decaying)
            )
        return [torch.zeros_like(own) if new is None else new for own, new in zip(self.gradients, found, strict=True)]

    def _drawing(self) -> AbstractContextManager[None]:
        """Within it, layers draw from the slot's generator."""
        return drawing_from(self.generator, self.device)


def _make_views(module: nn.Module, views: dict[str, Tensor]) -> None:
    """Make the parameters and buffers of a module views of a vector; tied ones follow their first name."""
    for name, parameter in module.named_parameters():
        parameter.data = views[name]
    for name, _ in module.named_buffers():
        if name in views:
            owner, _, leaf = name.rpartition(".")
            module.get_submodule(owner)._buffers[leaf] = views[name]
