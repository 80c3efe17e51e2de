"""A step of a method's own training, on the server or a client, taken many times on batches of the same shapes.

Narrow networks compute faster than Python can ask for their kernels. On a GPU the first two steps on batches of a shape
are taken as they are; the third one is captured, and it and all after it are replayed: the same kernels on the same
numbers, launched together. Where a step cannot be captured, all are taken as they are. On the CPU there is nothing to
capture.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedwidth.capture import GraphStream, capture_graph, no_waiting
from fedwidth.data.trees import Tree, copy_into, mapped, shapes
from fedwidth.methods.definition import Closing
from fedwidth.plan.isolation import Attributes
from fedwidth.plan.watching.side_effects import side_effect

MAX_GRAPHS = 8
"""Shapes of batches whose steps are captured; steps of others are taken as they are."""

Step = Callable[..., Tensor]
"""Takes a batch, trains, and returns one tensor; it asks nothing of the numbers it computes."""


@dataclass
class Graphs:
    """The stream and the memory of steps that are captured, on the server at the end of one round.

    Networks that are trained one after the other need the memory only one at a time, so they share it. It is theirs as
    long as one of its graphs is there: the last one is kept.
    """

    stream: GraphStream
    last: torch.cuda.CUDAGraph | None = field(default=None, repr=False)

    @classmethod
    def of(cls, closing: Closing) -> Graphs:
        """Those of a round's server."""
        return cls.on(closing.device)

    @classmethod
    def on(cls, device: torch.device) -> Graphs:
        """None yet; the memory that earlier ones had is given back."""
        if device.type == "cuda":
            torch.cuda.empty_cache()
        return cls(_stream_on(device).with_new_memory())

    def capture(self, step: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """A graph of a step, which is not taken by that. Where it fails, it has changed nothing."""
        assert self.stream.cuda is not None
        device = self.stream.cuda.device
        drawn = torch.cuda.get_rng_state(device)
        try:
            self.last = capture_graph(step, self.stream)
        except Exception:
            # Neither the memory nor the generator know that the capture is over: they are left behind.
            self.stream, self.last = self.stream.with_new_memory(), None
            generator = torch.Generator(device)
            generator.set_state(drawn)
            torch.cuda.default_generators[device.index].graphsafe_set_state(generator)
            raise
        return self.last


@cache
def _stream_on(device: torch.device) -> GraphStream:
    """The one stream of a device for this: libraries keep memory for every stream that they were ever used on."""
    return GraphStream.on(device)


class Captured(NamedTuple):
    """A captured step: where it reads its batch, the kernels, and where it writes what the step returns."""

    batch: list[Tree]
    graph: torch.cuda.CUDAGraph
    result: Tensor


class Repeated:
    """A step that trains a network with an optimiser, to be called with one batch after the other."""

    def __init__(self, step: Step, network: nn.Module, optimiser: Optimizer, graphs: Graphs) -> None:
        """The optimiser must be one that can be captured, its learning rate a number that stays or a tensor."""
        self.step, self.network, self.optimiser, self.graphs = step, network, optimiser, graphs
        self.captures = self.graphs.stream.cuda is not None
        """Whether steps are captured, as far as is known."""
        self._captured: dict[Hashable, Captured] = {}
        self._taken: dict[Hashable, int] = {}

    def __call__(self, *batch: Tree) -> Tensor:
        """Take the step on a batch; what it returns may be overwritten by the next one."""
        if not self.captures:
            return self._take(batch)
        kind = shapes(*batch)
        if kind not in self._captured:
            taken = self._taken.get(kind, 0)
            self._taken[kind] = taken + 1
            if taken == 0 or len(self._captured) == MAX_GRAPHS:
                return self._take(batch)  # libraries set themselves up, which cannot be captured
            if taken == 1:
                return self._try(batch)
            if not self._capture(kind, batch):
                return self._take(batch)
        held, graph, result = self._captured[kind]
        for own, new in zip(held, batch, strict=True):
            copy_into(own, new)
        graph.replay()
        return result

    def _take(self, batch: tuple[Tree, ...]) -> Tensor:
        """Take the step as it is, on the stream of the captures."""
        stream = self.graphs.stream
        try:
            with stream.queue():
                return self.step(*batch)
        finally:
            stream.join()

    def _try(self, batch: tuple[Tree, ...]) -> Tensor:
        """Take the step, and find out whether it can be captured; one that waits for the GPU is begun again."""
        assert self.graphs.stream.cuda is not None
        device = self.graphs.stream.cuda.device
        moments = [value for known in self.optimiser.state.values() for value in known.values()]
        buffers = list(self.network.buffers())
        held = [*self.network.parameters(), *buffers, *(m for m in moments if isinstance(m, Tensor))]
        before = [tensor.detach().clone() for tensor in held]
        attributes, drawn = Attributes(self.network), torch.cuda.get_rng_state(device)
        host, python, numpy = torch.random.get_rng_state(), random.getstate(), np.random.get_state()
        results: list[Tensor] = []
        try:
            with no_waiting():
                found = side_effect(self.network, lambda: results.append(self._take(batch)))
        except Exception:  # a model may do anything in its forward pass
            self.captures = False
        else:
            # A captured step would neither draw on the processor again, nor count, nor read what replaced a buffer.
            self.captures = found is None and _same(buffers, list(self.network.buffers()))
            return results[0]
        attributes.put_back()
        with torch.no_grad():
            for tensor, value in zip(held, before, strict=True):
                tensor.copy_(value)
        torch.cuda.set_rng_state(drawn, device)
        torch.random.set_rng_state(host)
        random.setstate(python)
        np.random.set_state(numpy)
        return self._take(batch)

    def _capture(self, kind: Hashable, batch: tuple[Tree, ...]) -> bool:
        """Capture the step for batches like this one; whether that worked."""
        held = [mapped(torch.clone, tree) for tree in batch]
        results: list[Tensor] = []
        try:
            graph = self.graphs.capture(lambda: results.append(self.step(*held)))
        except Exception:
            self.captures = False
            return False
        self._captured[kind] = Captured(held, graph, results[0])
        return True


def _same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return [id(tensor) for tensor in some] == [id(tensor) for tensor in others]
