"""Masks: uniform, bound to everything, and the same in every version (the notes' numbers 1 and 8 to 11)."""

from __future__ import annotations

import hashlib
import hmac
import random
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="cryptography is not installed: pip install 'fedwidth[secure]'")

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from parties import LENGTHS, TEN, Parties, make_devices, session_of

from fedwidth.secure.fixed_point import FixedPoint
from fedwidth.secure.masks import CHUNK, add_masks, mask_key
from fedwidth.secure.session import Member, digest_clients, digest_values


@pytest.mark.parametrize("seed", range(3))
def test_1_opened_sums_are_plain_sums_in_any_order(seed):
    parties = Parties(TEN, seed=seed)
    order = random.Random(seed)
    everyone = list(TEN)
    for step in (parties.share, parties.upload, parties.answer):
        if step == parties.answer:
            parties.server.settle()
        step(order.sample(everyone, len(everyone)))
    found = parties.open()
    assert found.keys() == {0, 1, 2}
    for segment, total in found.items():
        assert total.tolist() == parties.plain(segment, TEN).tolist()


def test_8_an_upload_looks_uniform_and_changes_wholly_with_any_key():
    """Words of zeros, masked: bits are half ones, bytes pass a chi-squared test, and nothing repeats."""
    length = 40_000
    uploads = []
    for _ in range(2):
        parties = Parties(dict.fromkeys(range(3), (0,)), changes={"lengths": {0: length}})
        parties.words = {client: np.zeros(length, np.uint32) for client in range(3)}
        parties.values = {0: np.zeros(length)}
        parties.share()
        uploads.append(parties.masked(0))
    for upload in uploads:
        counts = np.bincount(upload.view(np.uint8), minlength=256)
        chi_squared = float(((counts - length * 4 / 256) ** 2 / (length * 4 / 256)).sum())
        assert 255 - 6 * 22.6 < chi_squared < 255 + 6 * 22.6  # mean 255, standard deviation sqrt(2 * 255)
    assert (uploads[0] == uploads[1]).mean() < 1e-3


def test_9_one_seed_less_leaves_every_word_wrong():
    length = 10_000
    keys = [(bytes([number]) * 16, 1) for number in range(5)]
    whole, one_less = np.zeros(length, np.uint32), np.zeros(length, np.uint32)
    add_masks(whole, keys)
    add_masks(one_less, keys[:-1])
    assert (whole == one_less).mean() < 1e-2
    add_masks(whole, [(key, -1) for key, _ in keys])
    assert not whole.any()


def test_10_keys_differ_for_everything_that_can_differ():
    devices = make_devices(range(3))
    base = session_of(devices, dict.fromkeys(range(3), (0, 1, 2)))
    others = [
        replace(base, run=b"another"),
        replace(base, round=1),
        replace(base, attempt=1),
        replace(base, threshold=2),
        replace(base, min_clients=3),
        replace(base, lengths={**LENGTHS, 2: 12}),
        replace(base, plan=b"another"),
        replace(base, fixed_point=FixedPoint(4)),
        replace(base, fixed_point=FixedPoint(3, clip=2.0)),
        replace(base, fixed_point=FixedPoint(3, max_weight=2.0)),
        replace(base, every_class=True),
        replace(base, members=base.members[:-1]),
        replace(base, members=(*base.members[:-1], replace(base.members[-1], segments=(0, 1)))),
        replace(base, members=(*base.members[:-1], Member(9, base.members[-1].key, (0, 1, 2)))),
    ]
    assert len({session.digest for session in (base, *others)}) == 1 + len(others)
    about = (base.digest, digest_clients([0, 1, 2]), digest_values(np.zeros(3)))
    keys = {
        mask_key(bytes(16), 0, *about),
        mask_key(b"\x01" + bytes(15), 0, *about),
        mask_key(bytes(16), 1, *about),
        mask_key(bytes(16), 0, others[0].digest, *about[1:]),
        mask_key(bytes(16), 0, about[0], digest_clients([0, 1]), about[2]),
        mask_key(bytes(16), 0, *about[:2], digest_values(np.array([0, 0, 1e-300]))),
        mask_key(bytes(16), 0, *about[:2], digest_values(np.zeros(3, np.float32))),
    }
    assert len(keys) == 7


def by_the_book(seed: bytes, info: bytes, words: int) -> np.ndarray:
    """HKDF of RFC 5869 with HMAC, then AES in counter mode made of single blocks: nothing of the package."""
    extracted = hmac.new(bytes(32), seed, hashlib.sha256).digest()
    key = hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()[:16]
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    stream = b"".join(block.update(number.to_bytes(16, "big")) for number in range(-(-words // 4)))
    return np.frombuffer(stream, "<u4")[:words]


def test_11_known_answers():
    """A stream is what RFC 5869 and AES say, over more than a chunk; the first words stand here for all versions."""
    seed, session, sharers, values = bytes(range(16)), b"\x01" * 32, b"\x02" * 32, b"\x03" * 32
    fields = (b"fedwidth-secure-sums-1", b"segment", (2).to_bytes(8, "little"), session, sharers, values)
    info = b"".join(len(own).to_bytes(4, "little") + own for own in fields)
    words = np.zeros(CHUNK + 5, np.uint32)
    add_masks(words, [(mask_key(seed, 2, session, sharers, values), 1)])
    assert words.tolist() == by_the_book(seed, info, CHUNK + 5).tolist()
    assert [f"{word:08x}" for word in words[:4]] == KNOWN


KNOWN = ["530f3084", "0dfe5183", "0633f398", "38c167d5"]
