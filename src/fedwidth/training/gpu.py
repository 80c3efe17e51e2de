"""Working on a GPU: on which of several, and how precisely."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def on_gpu(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which streams and captured steps that name no GPU use this one; on the CPU it does nothing."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """A context in which forward passes have the precision of the settings; on the CPU it does nothing."""
    if device.type != "cuda" or precision != "bf16":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)
