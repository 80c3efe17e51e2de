"""CUDA graphs: the kernels of a training step are recorded once and from then on launched together."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch

MIN_FREE = 1 / 2
"""The share of the device's memory below which cached memory is given back before a capture: what is not free may all
be cached, and a capture needs as much again."""


@dataclass(frozen=True)
class GraphStream:
    """A CUDA stream on which steps run and are captured one at a time, with the memory that the captured ones share.

    On the CPU there is neither, and work is done at once.
    """

    cuda: torch.cuda.Stream | None
    memory: Any
    """The memory pool of the graphs that were captured here."""

    @classmethod
    def on(cls, device: torch.device) -> GraphStream:
        """A new stream on a device."""
        if device.type != "cuda":
            return cls(None, None)
        return cls(torch.cuda.Stream(device), torch.cuda.graph_pool_handle())  # type: ignore[no-untyped-call]

    def with_new_memory(self) -> GraphStream:
        """The same stream with another memory pool: that of graphs which are all gone must not be used again."""
        return self if self.cuda is None else GraphStream(self.cuda, torch.cuda.graph_pool_handle())

    def queue(self) -> AbstractContextManager[Any]:
        """Within it, work is queued on this stream, after what the caller's stream holds so far."""
        if self.cuda is None:
            return nullcontext()
        self.cuda.wait_stream(torch.cuda.current_stream(self.cuda.device))
        return torch.cuda.stream(self.cuda)

    def mark(self) -> torch.cuda.Event | None:
        """The end of what is queued here so far; None on the CPU."""
        return None if self.cuda is None else self.cuda.record_event()

    def join(self, mark: torch.cuda.Event | None = None) -> None:
        """Let whatever the caller's stream does from here on come after what is queued here, or was up to a mark.

        A device has few streams, which are handed out again and again: later work of others may be on this one.
        """
        if self.cuda is not None:
            caller = torch.cuda.current_stream(self.cuda.device)
            caller.wait_stream(self.cuda) if mark is None else caller.wait_event(mark)


def capture_graph(step: Callable[[], None], stream: GraphStream) -> torch.cuda.CUDAGraph:
    """A graph of the kernels of a step, which must have run once before.

    `torch.cuda.graph` does the same, but gives all cached memory back each time, which takes longer than the rest: a
    run captures a step for every slot and batch size.
    """
    cuda = stream.cuda
    assert cuda is not None, "only steps on a GPU are captured"
    torch.cuda.synchronize(cuda.device)
    free, total = torch.cuda.mem_get_info(cuda.device)
    if free < MIN_FREE * total:  # during a capture no cached memory can be given back
        torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(cuda), _no_garbage_collection():
        graph.capture_begin(pool=stream.memory)
        try:
            try:
                step()
            finally:
                graph.capture_end()
        except Exception:
            with suppress(RuntimeError):  # a capture that was broken off goes on in the eyes of the allocator
                torch._C._cuda_endAllocateToPool(cuda.device.index, stream.memory)
            raise
    return graph


@contextmanager
def no_waiting() -> Iterator[None]:
    """Within it, whatever makes the processor wait for the GPU raises an error: a captured step must not wait."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says that this does not find everything
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Keep Python from collecting garbage: a graph among it could not be freed while another one is captured."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
