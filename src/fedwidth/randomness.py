"""All randomness comes from (seed, round, client, purpose): no global state, no wall clock.

So a client's draws do not depend on who else takes part, on the order of work or on the number of workers, and a
resumed run continues with the same bits.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch


def numpy_generator(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """A numpy generator for this seed, purpose and numbers (round, client, …).

    >>> a, b = numpy_generator(1, "draw", 3, 0), numpy_generator(1, "draw", 3, 0)
    >>> bool(a.random() == b.random())
    True
    """
    return np.random.Generator(np.random.PCG64(_sequence(seed, purpose, numbers)))


def torch_generator(seed: int, purpose: str, *numbers: int, device: str | torch.device = "cpu") -> torch.Generator:
    """A torch generator on `device` for this seed, purpose and numbers."""
    generator = torch.Generator(device)
    generator.manual_seed(torch_seed(seed, purpose, *numbers))
    return generator


def torch_seed(seed: int, purpose: str, *numbers: int) -> int:
    """A 63-bit seed for this seed, purpose and numbers."""
    low, high = _sequence(seed, purpose, numbers).generate_state(2).tolist()
    return int(low | high << 32) >> 1


def _sequence(seed: int, purpose: str, numbers: tuple[int, ...]) -> np.random.SeedSequence:
    words = (seed, zlib.crc32(purpose.encode()), *numbers)
    # Numbers of 32 bits are the words that numpy would make of them one by one, in half the time.
    return np.random.SeedSequence(np.array(words, np.uint32) if 0 <= min(words) <= max(words) < 2**32 else words)
