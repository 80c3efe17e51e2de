"""Made-up text of any size, to measure memory and time with as many users as a real service has."""

from __future__ import annotations

import numpy as np
import torch

from fedwidth.data.records import Data, Split
from fedwidth.data.sets.vocabulary import BOS, SPECIAL
from fedwidth.errors import OptionError
from fedwidth.randomness import numpy_generator

CHUNK = 100_000  # sequences drawn at a time, so that the draws need little memory


def load_synthetic_text(
    *,
    users: int = 1_000,
    per_user: int = 10,
    test_per_user: int = 1,
    words: int = 10_000,
    length: int = 20,
    seed: int = 0,
) -> Data:
    """Sequences in which about every second word follows from the word before; the others are drawn by Zipf's law."""
    sizes = {"users": users, "per_user": per_user, "test_per_user": test_per_user, "words": words, "length": length}
    for name, value in sizes.items():
        if type(value) is not int or value < 1:
            raise OptionError(f"{name} must be a whole number of at least 1, not {value!r}")
    classes = words + len(SPECIAL)
    generator = numpy_generator(seed, "synthetic text")
    train, test = (
        _split(generator, users, per_user=count, words=words, length=length) for count in (per_user, test_per_user)
    )
    vocabulary = SPECIAL + tuple(f"word{number}" for number in range(words))
    return Data("synthetic_text", train, test, classes=classes, kind="tokens", vocabulary=vocabulary)


def _split(generator: np.random.Generator, users: int, *, per_user: int, words: int, length: int) -> Split:
    dtype = np.int16 if words + len(SPECIAL) <= np.iinfo(np.int16).max else np.int32
    tokens = np.empty((users * per_user, length + 1), dtype)
    share = np.cumsum(1 / np.arange(1, words + 1))
    share /= share[-1]
    for start in range(0, len(tokens), CHUNK):
        rows = tokens[start : start + CHUNK]
        rows[:, 0] = BOS
        word = np.zeros(len(rows), np.int64)
        for position in range(1, length + 1):
            fresh = np.searchsorted(share, generator.random(len(rows)))
            word = np.where(generator.random(len(rows)) < 0.5, (7 * word + 3) % words, fresh)
            rows[:, position] = word + len(SPECIAL)
    whole = torch.from_numpy(tokens)
    owners = torch.arange(users, dtype=torch.int32).repeat_interleave(per_user)
    # Inputs and targets share their memory: each sequence is complete, so nothing needs to be ignored.
    return Split(whole[:, :-1], whole[:, 1:], owners)
