"""The messages of a round beside the words themselves, as bytes of a fixed form. Numbers are little-endian.

invitation   the session and the signatures of some of its members' keys, framed
bundle   u16 clients, then 16 bytes for each and 16: the sealed seeds;
         then for each other client u16 its number, u16 length, and a letter: 12 bytes nonce, the sealed shares
shares   u16 from, u16 to, u8 how many, 17 bytes each: first that of the key of the seeds, then by segment
letters  for each sender u16 its number, u16 length, and its letter
answer   for each owner u16 its number, u8 kind (0: alive, 1: gone), u8 how many shares, 17 bytes each
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from fedwidth.errors import SecureError
from fedwidth.secure.session import Session, framed, number, unframed
from fedwidth.secure.sharing import SECRET_BYTES, SHARE_BYTES

NONCE_BYTES, TAG_BYTES = 12, 16
RUN_BYTES, SESSION_BYTES, MEMBER_BYTES = 16, 175, 56
"""The name of a run; what an invitation has beside members and segments; what a member has beside its segments."""
ALIVE, GONE = 0, 1
_OWNER, _LETTER, _SHARES = struct.Struct("<HBB"), struct.Struct("<HH"), struct.Struct("<HHB")


def encode_invitation(session: Session, known: Collection[bytes] = ()) -> bytes:
    """A session as a client is sent it, with the signatures of the keys that it does not know yet."""
    new = [member for member in session.members if member.key not in known]
    return framed(session.encode(), *(number(member.client) + member.signature for member in new))


def decode_invitation(data: bytes) -> Session:
    """The session of an invitation, with the signatures that came with it."""
    first, *others = unframed(data) or [b""]
    session, signatures = Session.decode(first), {int.from_bytes(own[:8], "little"): own[8:] for own in others}
    members = [replace(member, signature=signatures.get(member.client, b"")) for member in session.members]
    return replace(session, members=tuple(members))


def encode_letters(letters: Mapping[int, bytes]) -> bytes:
    """The letters to one client, by their senders."""
    return b"".join(_LETTER.pack(sender, len(own)) + own for sender, own in sorted(letters.items()))


def decode_letters(data: bytes) -> dict[int, bytes]:
    """The letters to one client, by their senders; two of one sender are refused."""
    reader, letters = _Reader(data, "a bag of letters"), dict[int, bytes]()
    while reader.left:
        sender, length = _LETTER.unpack(reader.take(_LETTER.size))
        if sender in letters:
            raise SecureError(f"there are two letters from client {sender}")
        letters[sender] = reader.take(length)
    return letters


def encode_clients(clients: Sequence[int]) -> bytes:
    """Clients as bytes: who is alive."""
    return struct.pack(f"<{len(clients)}H", *clients)


def decode_clients(data: bytes) -> list[int]:
    """The clients that these bytes stand for."""
    if len(data) % 2:
        raise SecureError("a list of clients is too long by a byte")
    return list(struct.unpack(f"<{len(data) // 2}H", data))


@dataclass(frozen=True)
class Bundle:
    """What a client sends before a round: for the server its seeds, sealed, and for each other client its shares."""

    seeds: bytes
    letters: Mapping[int, bytes]

    def encode(self) -> bytes:
        """The bundle as bytes."""
        head = struct.pack("<H", len(self.letters)) + self.seeds
        return head + encode_letters(self.letters)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The bundle that these bytes stand for; others are refused."""
        reader = _Reader(data, "a bundle")
        (others,) = struct.unpack("<H", reader.take(2))
        seeds = reader.take(SECRET_BYTES * others + TAG_BYTES)
        letters = decode_letters(reader.take(reader.left))
        if len(letters) != others:
            raise SecureError(f"a bundle has {len(letters)} letters, not {others}")
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
    segments = len({segment for own in held.values() for segment in own})
    session = SESSION_BYTES + sum(MEMBER_BYTES + 2 * len(own) for own in held.values()) + 20 * segments
    bundles = clients * (2 + SECRET_BYTES * (clients - 1) + TAG_BYTES) + letters
    shares = sum(len(set(held[c]) & set(opened)) for c in survivors) + clients - alive
    answers = alive * (clients * _OWNER.size + SHARE_BYTES * shares)
    return clients * session + letters + alive * 2 * alive, bundles + answers


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
