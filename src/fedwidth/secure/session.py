"""What all clients of one attempt at a round agree on. Every key depends on all of it.

Fields are laid one after the other, each with its length before it: no two sessions have the same bytes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fedwidth.errors import SecureError
from fedwidth.secure.fixed_point import FixedPoint

PROTOCOL = b"fedwidth-secure-sums-1"


@dataclass(frozen=True)
class Member:
    """A client of a session: its public key, and the segments that it holds."""

    client: int
    key: bytes
    segments: tuple[int, ...]
    signature: bytes = b""
    """Proof that the key is the client's own; it is no part of what is agreed on."""


@dataclass(frozen=True)
class Session:
    """One attempt at one round of one run."""

    run: bytes
    """A name that no other run has."""
    round: int
    attempt: int
    members: tuple[Member, ...]
    """Everyone who is to take part, in the order of their numbers."""
    threshold: int
    """How many of them must answer before anything is opened."""
    min_clients: int
    """How many holders a segment must have to be opened."""
    lengths: Mapping[int, int]
    """How many words each segment has."""
    plan: bytes
    """A digest of the model's plan."""
    fixed_point: FixedPoint
    every_class: bool = False
    """Whether a segment is opened only if every width among its holders has so many."""

    @cached_property
    def by_client(self) -> dict[int, Member]:
        """The members by their numbers."""
        return {member.client: member for member in self.members}

    @cached_property
    def held(self) -> dict[int, tuple[int, ...]]:
        """The segments that each client holds."""
        return {member.client: member.segments for member in self.members}

    def point(self, client: int) -> int:
        """Where the shares of a client lie on the polynomials: its place among all, from 1."""
        return self._points[client]

    @cached_property
    def _points(self) -> dict[int, int]:
        return {member.client: number for number, member in enumerate(self.members, start=1)}

    def encode(self) -> bytes:
        """The bytes that stand for the session."""
        members = [
            framed(number(member.client), member.key, struct.pack(f"<{len(member.segments)}H", *member.segments))
            for member in self.members
        ]
        point = self.fixed_point
        return framed(
            PROTOCOL,
            self.run,
            number(self.round),
            number(self.attempt),
            framed(*members),
            number(self.threshold),
            number(self.min_clients),
            framed(*(number(segment) + number(length) for segment, length in sorted(self.lengths.items()))),
            self.plan,
            number(point.clients) + struct.pack("<dd", point.clip, point.max_weight),
            bytes([self.every_class]),
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The session that these bytes stand for, without signatures; others are refused."""
        try:
            protocol, run, at, attempt, members, needed, least, lengths, plan, point, every_class = unframed(data)
            if protocol != PROTOCOL:
                raise SecureError(f"the server speaks {protocol[:40]!r}, and this device {PROTOCOL!r}")
            clients, clip, max_weight = struct.unpack("<Qdd", point)
            return cls(
                run=run,
                round=_whole(at),
                attempt=_whole(attempt),
                members=tuple(_member(member) for member in unframed(members)),
                threshold=_whole(needed),
                min_clients=_whole(least),
                lengths=dict(struct.unpack("<QQ", pair) for pair in unframed(lengths)),
                plan=plan,
                fixed_point=FixedPoint(clients, clip, max_weight),
                every_class={b"\0": False, b"\1": True}[every_class],
            )
        except (ValueError, KeyError, struct.error) as error:
            raise (
                error if isinstance(error, SecureError) else SecureError("a session is not what it should be")
            ) from None

    @cached_property
    def digest(self) -> bytes:
        """What every key of the session depends on."""
        return hashlib.sha256(self.encode()).digest()


def _member(data: bytes) -> Member:
    client, key, segments = unframed(data)
    return Member(_whole(client), key, struct.unpack(f"<{len(segments) // 2}H", segments))


def _whole(data: bytes) -> int:
    (found,) = struct.unpack("<Q", data)
    return int(found)


def number(value: int) -> bytes:
    """A whole number of at least 0 in 8 bytes."""
    return value.to_bytes(8, "little")


def framed(*fields: bytes) -> bytes:
    """Fields of any length, so that they can be told apart.

    >>> framed(b"a", b"bc") == framed(b"ab", b"c")
    False
    """
    return b"".join(len(field).to_bytes(4, "little") + field for field in fields)


def unframed(data: bytes) -> list[bytes]:
    """The fields that were framed.

    >>> unframed(framed(b"a", b"", b"bc"))
    [b'a', b'', b'bc']
    """
    found, at = [], 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        if at + 4 + length > len(data):
            raise SecureError("a message ends within a field")
        found.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return found


def digest_clients(clients: list[int]) -> bytes:
    """A digest of a set of clients."""
    return hashlib.sha256(b"".join(map(number, sorted(clients)))).digest()


def digest_values(values: NDArray[np.generic]) -> bytes:
    """A digest of the values of a segment, as a client was sent them."""
    return hashlib.sha256(framed(values.dtype.str.encode(), np.ascontiguousarray(values).tobytes())).digest()
