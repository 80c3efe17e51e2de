"""Working on a GPU, on which of several; and how precisely, on a GPU or a processor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch


def on_gpu(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which streams and captured steps that name no GPU use this one; on the CPU it does nothing."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """A context in which forward passes have the precision of the settings; it does something for bf16 alone."""
    if precision != "bf16":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)


def arithmetic(device: torch.device | str, precision: str) -> str:
    """What the precision of the settings is on this device: a processor knows no TF32.

    >>> arithmetic("cuda", "tf32"), arithmetic("cpu", "tf32"), arithmetic("cpu", "bf16")
    ('tf32', 'float32', 'bf16')
    """
    return "float32" if torch.device(device).type == "cpu" and precision == "tf32" else precision


def set_precision(precision: str) -> None:
    """Choose the arithmetic of the GPU, and kernels that give the same bits every time."""
    rough = precision != "float32"
    _set_arithmetic(deterministic=True, benchmark=False, convolutions_tf32=rough, products_tf32=rough)


@contextmanager
def with_precision(precision: str) -> Iterator[None]:
    """Within it, the arithmetic of the GPU is that of `set_precision`; afterwards it is what it was."""
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    set_precision(precision)
    try:
        yield
    finally:
        deterministic, benchmark, convolutions, products = before
        _set_arithmetic(
            deterministic=deterministic, benchmark=benchmark, convolutions_tf32=convolutions, products_tf32=products
        )


def _set_arithmetic(*, deterministic: bool, benchmark: bool, convolutions_tf32: bool, products_tf32: bool) -> None:
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.benchmark = benchmark
    torch.backends.cudnn.allow_tf32 = convolutions_tf32
    torch.backends.cuda.matmul.allow_tf32 = products_tf32
