"""Recording a step's kernels once, to launch them together from then on: CUDA graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

LITTLE = 1 / 2
"""Of the device's memory: what is not free may all be cached, and a capture needs as much again."""


def record(step: Callable[[], None], *, stream: torch.cuda.Stream | None, pool: Any) -> torch.cuda.CUDAGraph:
    """The kernels of a step, which must have run before.

    Graphs that share a pool must not run side by side, and a pool whose graphs are all gone must not be used again.

    `torch.cuda.graph` does the same, but gives all cached memory back each time, which takes longer than the rest: a
    run captures a step for every slot and batch size.
    """
    assert stream is not None, "only steps on a GPU are captured"
    torch.cuda.synchronize(stream.device)
    free, total = torch.cuda.mem_get_info(stream.device)
    if free < LITTLE * total:  # during a capture no cached memory can be given back
        torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream), _no_collection():
        graph.capture_begin(pool=pool)
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
