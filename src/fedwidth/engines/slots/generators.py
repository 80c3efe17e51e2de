"""Letting layers that draw at random (dropout) draw from a slot's own generator instead of the device's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch

DRAWING = Lock()
"""Held while a slot's generator is lent to the device: layers draw from the one generator that the device has."""


@contextmanager
def drawing_from(generator: torch.Generator, device: torch.device) -> Iterator[None]:
    """Within it, layers on the device draw from this generator."""
    with DRAWING:
        if device.type == "cuda":
            default = torch.cuda.default_generators[device.index or 0]
            own = default.graphsafe_get_state()
            default.graphsafe_set_state(generator)  # shared, not copied: a graph captured now draws from it
            try:
                yield
            finally:
                default.graphsafe_set_state(own)
        else:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.set_state(generator.get_state())
                yield
                generator.set_state(torch.default_generator.get_state())
