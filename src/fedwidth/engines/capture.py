"""Recording a step's kernels once, to launch them together from then on: CUDA graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

LITTLE = 1 / 2
"""Of the device's memory: what is not free may all be cached, and a capture needs as much again."""


@dataclass(frozen=True)
class Place:
    """Where steps run and are captured, one at a time: a stream, and memory that captured steps share.

    On the CPU there is neither, and work is done at once.
    """

    stream: torch.cuda.Stream | None
    pool: Any

    @classmethod
    def on(cls, device: torch.device) -> Place:
        """A new place on a device."""
        if device.type != "cuda":
            return cls(None, None)
        return cls(torch.cuda.Stream(device), torch.cuda.graph_pool_handle())  # type: ignore[no-untyped-call]

    def renewed(self) -> Place:
        """The same stream with other memory: that of steps which are all gone must not be used again."""
        return self if self.stream is None else Place(self.stream, torch.cuda.graph_pool_handle())

    def queue(self) -> AbstractContextManager[Any]:
        """Within it, work is queued on this stream, after what the caller's stream holds so far."""
        if self.stream is None:
            return nullcontext()
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        return torch.cuda.stream(self.stream)

    def join(self) -> None:
        """Whatever the caller's stream does from here on comes after what is queued here."""
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)


def record(step: Callable[[], None], place: Place) -> torch.cuda.CUDAGraph:
    """The kernels of a step, which must have run before.

    `torch.cuda.graph` does the same, but gives all cached memory back each time, which takes longer than the rest: a
    run captures a step for every slot and batch size.
    """
    stream = place.stream
    assert stream is not None, "only steps on a GPU are captured"
    torch.cuda.synchronize(stream.device)
    free, total = torch.cuda.mem_get_info(stream.device)
    if free < LITTLE * total:  # during a capture no cached memory can be given back
        torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream), _no_collection():
        graph.capture_begin(pool=place.pool)
        try:
            step()
        finally:
            graph.capture_end()
    return graph


@contextmanager
def _no_collection() -> Iterator[None]:
    """Within it, Python collects no garbage: a graph among it could not be freed while another is captured."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
