"""What secure sums cost: masks against the keystream they are made of, opening against averaging, bytes against models.

    python benchmarks/secure.py                                PreResNet18 at full width among 100 clients
    python benchmarks/secure.py --words 1000000 --clients 20

Needs the extra `secure`. What is compared takes turns, and the best of each counts, in seconds of the processor. The
keystream is AES-128 in counter mode for every other client and the client itself; masking makes the same streams and
adds them to the words.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedwidth.secure.masks import CHUNK, add_masks
from fedwidth.secure.messages import overhead
from fedwidth.secure.rules import threshold
from fedwidth.secure.sharing import combine, split, weights_at_zero

WIDTHS = {"1": 11_172_170, "1/2": 2_796_714, "1/4": 701_018, "1/8": 176_178, "1/16": 44_510}
"""Weights of PreResNet18 with ten classes."""
UNITS = {"1": 2880, "1/2": 1440, "1/4": 720, "1/8": 360, "1/16": 180}
"""Units of its width groups: a client is sent the shell of each in a byte."""


def seconds(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def keystream(words: int, keys: list[bytes], *, whole: bool) -> None:
    """The streams of these keys: each as one vector, or piece by piece over one piece that stays in the cache."""
    piece = words if whole else min(CHUNK, words)
    zeros, out = bytes(4 * piece), bytearray(4 * piece)
    for key in keys:
        cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        for begin in range(0, words, piece):
            length = 4 * min(piece, words - begin)
            cipher.update_into(memoryview(zeros)[:length], memoryview(out)[:length])


def compare_masking(words: int, streams: int, repeats: int) -> None:
    """One client among as many others as there are streams."""
    keys = [os.urandom(16) for _ in range(streams)]
    total = np.zeros(words, np.uint32)
    ways: dict[str, Callable[[], None]] = {
        "keystream, whole vectors": lambda: keystream(words, keys, whole=True),
        "keystream, in the cache": lambda: keystream(words, keys, whole=False),
        "masking": lambda: add_masks(total, [(key, 1) for key in keys]),
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(repeats):
        for name, work in ways.items():  # in turn, so that all see the same neighbours
            best[name] = min(best[name], seconds(work))
    for name, took in best.items():
        print(f"{name:28} {took:8.3f} s   {4 * words * streams / took / 1e9:6.2f} GB/s")
    whole, cached, masking = best.values()
    print(f"masking / keystream: {masking / whole:.2f} of whole vectors, {masking / cached:.2f} of that in the cache")


def compare_opening(clients: int, gone: int) -> None:
    """Taking the masks off the sums of five widths with equally many clients, against averaging the updates."""
    sizes = sorted(WIDTHS.values())
    own = [number % len(sizes) for number in range(clients)]
    alive, lost = own[gone:], own[:gone]
    points = list(range(1, threshold(clients) + 1))
    shares = split(bytes(16), list(range(1, clients + 1)), len(points))
    secrets = sum(width + 1 for width in alive) + gone
    streams = []
    for shell, (size, inner) in enumerate(zip(sizes, [0, *sizes], strict=False)):
        holders, others = (sum(width >= shell for width in some) for some in (alive, lost))
        streams.append((np.zeros(size - inner, np.uint32), holders * (1 + others)))

    def unmask() -> None:
        weights = weights_at_zero(points)
        for _ in range(secrets):
            combine({point: shares[point] for point in points}, weights)
        for total, number in streams:
            add_masks(total, [(os.urandom(16), -1) for _ in range(number)])

    torch.set_num_threads(1)
    updates = [torch.ones(size) for size in sizes]

    def average() -> None:
        means = [torch.zeros(size) for size in sizes]
        for number, width in enumerate(alive):
            means[width].lerp_(updates[width], 1 / (number + 1))

    opening, plain = (min(seconds(work) for _ in range(2)) for work in (unmask, average))
    print(
        f"opening with {gone} of {clients} gone, five widths: {opening:.2f} s; averaging {len(alive)} updates"
        f" {plain:.3f} s; ratio {opening / plain:.1f}"
    )


def compare_bytes() -> None:
    """What everyone sends and is sent beside the model, for a tenth of clients gone, as a share of the model."""
    for clients in (10, 100):
        held = {client: tuple(range(5 - client % 5)) for client in range(clients)}
        alive = [client for client in range(clients) if client % 10]
        down, up = overhead(held, alive, range(5))
        each = (down + up) / clients
        shares = ", ".join(f"{(each + UNITS[width]) / (8 * words):.2%} at {width}" for width, words in WIDTHS.items())
        print(f"{clients} clients: {each / 1e3:.1f} kB each, down and up: {shares}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--words", type=int, default=WIDTHS["1"])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--gone", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    compare_masking(given.words, given.clients, given.repeats)
    compare_opening(given.clients, given.gone)
    compare_bytes()


if __name__ == "__main__":
    main()
