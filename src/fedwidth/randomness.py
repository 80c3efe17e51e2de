"""All randomness comes from (seed, round, client, purpose): no global state, no wall clock.

So a client's draws do not depend on who else takes part, on the order of work or on the number of workers, and a
resumed run continues with the same bits.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

CPU = torch.device("cpu")


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


@contextmanager
def seeded(seed: int, device: torch.device = CPU) -> Iterator[None]:
    """Within it, what code of others draws unasked (dropout on `device`, `random`, `np.random`) comes from the seed.

    Afterwards these generators are as they were.

    >>> with seeded(1):
    ...     first = random.random(), np.random.rand(), torch.rand(())
    >>> with seeded(1):
    ...     first == (random.random(), np.random.rand(), torch.rand(()))
    True
    """
    with host_kept(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        seed_all(seed, device)
        yield


@contextmanager
def host_kept() -> Iterator[None]:
    """After it, the generators of Python and NumPy are as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def seed_all(seed: int, device: torch.device | None = None) -> None:
    """Seed the generators that code of others draws from: Python's, NumPy's and PyTorch's, on one device or on all."""
    if device is not None and device.type == "cpu":
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` also visits devices that are not in use
    else:
        torch.manual_seed(seed)
    seed_host(seed)


def seed_host(seed: int) -> None:
    """Seed the generators of Python and NumPy."""
    random.seed(seed)
    np.random.seed((seed + 1) % 2**32)  # NumPy's generator is PyTorch's: from one seed both would draw the same


def host_state() -> tuple[object, ...]:
    """The state of the generators of Python and NumPy, to see whether somebody has drawn from them."""
    numpy = np.random.get_state(legacy=False)["state"]
    return random.getstate(), numpy["pos"], numpy["key"].tobytes()


def _sequence(seed: int, purpose: str, numbers: tuple[int, ...]) -> np.random.SeedSequence:
    words = (seed, zlib.crc32(purpose.encode()), *numbers)
    # Numbers of 32 bits are the words that numpy would make of them one by one, in half the time.
    return np.random.SeedSequence(np.array(words, np.uint32) if 0 <= min(words) <= max(words) < 2**32 else words)
