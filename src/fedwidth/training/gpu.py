"""Working on a GPU: on which of several, and how precisely."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Within it, streams and captured steps that name no GPU are this one's."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Within it, a forward pass has the precision of the settings, which is for GPUs."""
    if device.type != "cuda" or precision != "bf16":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)
