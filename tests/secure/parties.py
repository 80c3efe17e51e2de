"""Devices and a server in one process, small enough to go through the protocol in milliseconds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="cryptography is not installed: pip install 'fedwidth[secure]'")

from cryptography.hazmat.primitives.asymmetric import ec

from fedwidth.secure.aggregator import Aggregator
from fedwidth.secure.device import Device
from fedwidth.secure.fixed_point import FixedPoint
from fedwidth.secure.messages import Answer, Bundle
from fedwidth.secure.rules import threshold
from fedwidth.secure.session import Member, Session, digest_values

RUN = b"a run of the tests"
LENGTHS = {0: 5, 1: 7, 2: 11}
"""The words of three shells."""


@cache
def signing_key(client: int) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def make_devices(clients: Collection[int], *, min_clients: int = 2, run: bytes = RUN) -> dict[int, Device]:
    roster = {client: signing_key(client).public_key() for client in clients}
    return {
        client: Device(client, run, signing=signing_key(client), roster=roster, min_clients=min_clients)
        for client in clients
    }


def session_of(devices: Mapping[int, Device], held: Mapping[int, Sequence[int]], **changes: object) -> Session:
    members = tuple(
        Member(client, devices[client].key, tuple(held[client]), devices[client].introduce()[1])
        for client in sorted(devices)
    )
    made = Session(
        run=RUN,
        round=0,
        attempt=0,
        members=members,
        threshold=threshold(len(members)),
        min_clients=2,
        lengths=LENGTHS,
        plan=b"plan",
        fixed_point=FixedPoint(len(members)),
    )
    return replace(made, **changes)


@dataclass
class Parties:
    """All parties of a session, which go through it step by step."""

    held: Mapping[int, Sequence[int]]
    min_clients: int = 2
    changes: Mapping[str, object] = field(default_factory=dict)
    devices: dict[int, Device] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        self.devices = self.devices or make_devices(self.held)
        self.session = session_of(self.devices, self.held, min_clients=self.min_clients, **self.changes)
        self.server = Aggregator(self.session)
        draws = np.random.default_rng(self.seed)
        self.words = {
            client: draws.integers(0, 2**32, sum(LENGTHS[s] for s in own), np.uint32)
            for client, own in self.held.items()
        }
        self.values = {segment: draws.standard_normal(length) for segment, length in LENGTHS.items()}

    def received(self, client: int) -> np.ndarray:
        return np.concatenate([self.values[segment] for segment in self.held[client]])

    def split(self, client: int, words: np.ndarray) -> dict[int, np.ndarray]:
        """The words of a client by segment."""
        own = self.held[client]
        return dict(zip(own, np.split(words, np.cumsum([LENGTHS[s] for s in own])[:-1]), strict=True))

    def mask(self, client: int, letters: Mapping[int, bytes], received: np.ndarray | None = None) -> np.ndarray:
        values = self.split(client, self.received(client) if received is None else received)
        at = self.session.round, self.session.attempt
        return self.devices[client].mask(*at, self.split(client, self.words[client]), values, letters)

    def share(self, clients: Collection[int] | None = None) -> None:
        for client in self.held if clients is None else clients:
            bundle = self.devices[client].share(self.session)
            self.server.collect(client, Bundle.decode(bundle.encode()))

    def masked(self, client: int) -> np.ndarray:
        return self.mask(client, self.server.letters_for(client))

    def upload(self, clients: Collection[int] | None = None) -> None:
        for client in self.held if clients is None else clients:
            self.server.add(client, self.masked(client))

    def answer(self, clients: Collection[int] | None = None) -> None:
        alive = self.server.settle()
        for client in alive if clients is None else clients:
            answer = self.devices[client].open(self.session.round, self.session.attempt, alive)
            self.server.answer(client, Answer.decode(answer.encode()))

    def open(self) -> dict[int, np.ndarray]:
        return self.server.open({segment: digest_values(values) for segment, values in self.values.items()})

    def plain(self, segment: int, clients: Collection[int]) -> np.ndarray:
        """The sum of one segment without any protocol."""
        total = np.zeros(LENGTHS[segment], np.uint32)
        for client in clients:
            if segment in self.held[client]:
                begin = sum(LENGTHS[s] for s in self.held[client] if s < segment)
                total += self.words[client][begin : begin + LENGTHS[segment]]
        return total


TEN = {client: tuple(range(1 + client % 3)) for client in range(10)}
"""Ten clients of three widths: clients 2, 5 and 8 hold all three shells, seven hold the second."""
