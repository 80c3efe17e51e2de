"""Working on one GPU of several."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Within it, streams and captured steps that name no GPU are this one's."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
