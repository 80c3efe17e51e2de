"""Masks: a key becomes a stream of words (AES-128 in counter mode) that is added to what a client sends, or taken off.

A stream serves one session, segment and pair of clients, so its key does, and the counter begins at 0. Words are
little-endian. Streams are added piece by piece while the piece is in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from fedwidth.secure.keys import derive
from fedwidth.secure.session import number

CHUNK = 1 << 15
"""Words that are masked at a time."""
_ZEROS = memoryview(bytes(4 * CHUNK))


def mask_key(seed: bytes, segment: int, session: bytes, sharers: bytes, values: bytes) -> bytes:
    """The key of a stream, from a seed and the digests of the session, of who has shared, and of the values sent."""
    return derive(seed, b"segment", number(segment), session, sharers, values)


def add_masks(words: NDArray[np.uint32], streams: Iterable[tuple[bytes, int]]) -> None:
    """Add the streams of these keys to the words where the sign is 1, subtract them where it is -1, in place."""
    ciphers = [(Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor(), sign) for key, sign in streams]
    scratch = np.empty(CHUNK, "<u4")
    room = scratch.data.cast("B")
    for begin in range(0, words.size, CHUNK):
        part = words[begin : begin + CHUNK]
        zeros, into, mask = _ZEROS[: 4 * part.size], room[: 4 * part.size], scratch[: part.size]
        for cipher, sign in ciphers:
            cipher.update_into(zeros, into)
            (np.add if sign > 0 else np.subtract)(part, mask, part)
