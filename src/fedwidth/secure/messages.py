"""The messages of a round beside the words themselves, as bytes of a fixed form. Numbers are little-endian.

bundle   u16 clients, then 16 bytes for each and 16: the sealed seeds;
         then for each other client u16 its number, u16 length, and a letter: 12 bytes nonce, the sealed shares
shares   u16 from, u16 to, u8 how many, 17 bytes each: first that of the key of the seeds, then by segment
answer   for each owner u16 its number, u8 kind (0: alive, 1: gone), u8 how many shares, 17 bytes each
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from fedwidth.errors import SecureError
from fedwidth.secure.sharing import SECRET_BYTES, SHARE_BYTES

NONCE_BYTES, TAG_BYTES, KEY_BYTES = 12, 16, 32
ALIVE, GONE = 0, 1
_OWNER, _LETTER, _SHARES = struct.Struct("<HBB"), struct.Struct("<HH"), struct.Struct("<HHB")


@dataclass(frozen=True)
class Bundle:
    """What a client sends before a round: for the server its seeds, sealed, and for each other client its shares."""

    seeds: bytes
    letters: Mapping[int, bytes]

    def encode(self) -> bytes:
        """The bundle as bytes."""
        head = struct.pack("<H", len(self.letters)) + self.seeds
        return head + b"".join(_LETTER.pack(to, len(own)) + own for to, own in sorted(self.letters.items()))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The bundle that these bytes stand for; others are refused."""
        reader = _Reader(data, "a bundle")
        (others,) = struct.unpack("<H", reader.take(2))
        seeds, letters = reader.take(SECRET_BYTES * others + TAG_BYTES), {}
        for _ in range(others):
            to, length = _LETTER.unpack(reader.take(_LETTER.size))
            letters[to] = reader.take(length)
        reader.end()
        if len(letters) != others:
            raise SecureError("a bundle has two letters for one client")
        return cls(seeds, letters)


def encode_shares(sender: int, to: int, shares: Sequence[bytes]) -> bytes:
    """The shares of one client for another, to be sealed."""
    return _SHARES.pack(sender, to, len(shares)) + b"".join(shares)


def decode_shares(data: bytes, *, sender: int, to: int, number: int) -> list[bytes]:
    """The shares of a letter, which must be from and to these clients and so many."""
    reader = _Reader(data, "a letter")
    if _SHARES.unpack(reader.take(_SHARES.size)) != (sender, to, number):
        raise SecureError(f"a letter from client {sender} is not what it should be")
    found = [reader.take(SHARE_BYTES) for _ in range(number)]
    reader.end()
    return found


@dataclass(frozen=True)
class Answer:
    """What a client sends to open a round: by owner the kind of shares, and the shares."""

    shares: Mapping[int, tuple[int, tuple[bytes, ...]]]

    def encode(self) -> bytes:
        """The answer as bytes."""
        found = ((_OWNER.pack(owner, kind, len(own)), own) for owner, (kind, own) in sorted(self.shares.items()))
        return b"".join(head + b"".join(own) for head, own in found)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The answer that these bytes stand for; others are refused."""
        reader, shares = _Reader(data, "an answer"), dict[int, tuple[int, tuple[bytes, ...]]]()
        while reader.left:
            owner, kind, number = _OWNER.unpack(reader.take(_OWNER.size))
            if owner in shares or kind not in (ALIVE, GONE):
                raise SecureError("an answer names a client twice, or shares of no kind there is")
            shares[owner] = (kind, tuple(reader.take(SHARE_BYTES) for _ in range(number)))
        return cls(shares)


def overhead(held: Mapping[int, Sequence[int]], survivors: Collection[int], opened: Collection[int]) -> tuple[int, int]:
    """Bytes down and up of a round beside the sub-models, all clients together; those not alive have shared their keys.

    Down go everyone's number, key and segments, the letters of the others, and who is alive; up go bundles and answers.
    """
    clients, alive = len(held), len(survivors)
    letter = {c: NONCE_BYTES + _SHARES.size + SHARE_BYTES * (1 + len(own)) + TAG_BYTES for c, own in held.items()}
    letters = (clients - 1) * sum(_LETTER.size + length for length in letter.values())
    members = clients * sum(2 + KEY_BYTES + 1 + len(own) for own in held.values())
    bundles = clients * (2 + SECRET_BYTES * (clients - 1) + TAG_BYTES) + letters
    shares = sum(len(set(held[c]) & set(opened)) for c in survivors) + clients - alive
    answers = alive * (clients * _OWNER.size + SHARE_BYTES * shares)
    return members + letters + alive * 2 * alive, bundles + answers


class _Reader:
    """Takes bytes off the front of a message."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data, self._what, self._at = data, what, 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, length: int) -> bytes:
        if length > self.left:
            raise SecureError(f"{self._what} is too short")
        self._at += length
        return self._data[self._at - length : self._at]

    def end(self) -> None:
        if self.left:
            raise SecureError(f"{self._what} is too long")
