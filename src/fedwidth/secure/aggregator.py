"""The server's side of secure sums: it passes letters on, adds up masked words, and takes off the masks of the sums.

collect    bundles of shares, until it is time to train; who has sent one has shared
add        masked words as they come, in any order
settle     who is alive; too few are refused here, before anybody is asked to open anything
answer     answers, of which as many are needed as the session says
open       the sums of the segments that enough of those alive hold
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedwidth.errors import SecureError
from fedwidth.secure.device import unseal_seeds
from fedwidth.secure.masks import add_masks, mask_key
from fedwidth.secure.messages import ALIVE, GONE, Answer, Bundle
from fedwidth.secure.rules import open_segments
from fedwidth.secure.session import Session, digest_clients
from fedwidth.secure.sharing import SECRET_BYTES, combine, weights_at_zero


class Aggregator:
    """The sums of one session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._bundles: dict[int, Bundle] = {}
        self._totals = {segment: np.zeros(length, np.uint32) for segment, length in session.lengths.items()}
        self._added: list[int] = []
        self._answers: dict[int, Answer] = {}
        self._is_collecting = True
        self.survivors: list[int] | None = None
        """Who is alive, once that is settled."""

    @property
    def sharers(self) -> list[int]:
        """Who has shared."""
        return sorted(self._bundles)

    def collect(self, client: int, bundle: Bundle) -> None:
        """Take the bundle of a client, which must have a letter for every other one."""
        others = self.session.by_client.keys() - {client}
        if client not in self.session.by_client or client in self._bundles or not self._is_collecting:
            raise SecureError(f"client {client} is not to share now")
        if bundle.letters.keys() != others:
            raise SecureError(f"client {client} has not a letter for every other client")
        self._bundles[client] = bundle

    def letters_for(self, client: int) -> dict[int, bytes]:
        """The letters to a client from all others that have shared; from now on nobody else does."""
        if client not in self._bundles:
            raise SecureError(f"client {client} has not shared")
        self._is_collecting = False
        return {sender: bundle.letters[client] for sender, bundle in self._bundles.items() if sender != client}

    def add(self, client: int, masked: NDArray[np.uint32]) -> None:
        """Add the masked words of a client; those that come late, twice or have another length are refused."""
        if client not in self._bundles or client in self._added or self.survivors is not None:
            raise SecureError(f"the words of client {client} come too late, twice, or without its having shared")
        own = self.session.held[client]
        length = sum(self.session.lengths[segment] for segment in own)
        if masked.size != length or masked.dtype != np.uint32:
            raise SecureError(f"client {client} sent {masked.size} words of {masked.dtype}, not {length} of uint32")
        at = 0
        for segment in own:
            total = self._totals[segment]
            total += masked[at : at + total.size]
            at += total.size
        self._added.append(client)

    def settle(self) -> list[int]:
        """Who is alive, in the order of their numbers; from now on nobody else is."""
        if len(self._added) < self.session.threshold:
            raise SecureError(
                f"only {len(self._added)} of {len(self.session.members)} clients have sent their words, and"
                f" {self.session.threshold} are needed: nothing is opened"
            )
        self.survivors = sorted(self._added)
        return self.survivors

    def answer(self, client: int, answer: Answer) -> None:
        """Take the answer of a client that is alive."""
        if self.survivors is None or client not in self.survivors or client in self._answers:
            raise SecureError(f"client {client} is not to answer now")
        expected = {owner: self._wanted(owner) for owner in self.sharers}
        if {owner: (kind, len(shares)) for owner, (kind, shares) in answer.shares.items()} != expected:
            raise SecureError(f"client {client} answered with other shares than it was asked for")
        self._answers[client] = answer

    def open(self, values: Mapping[int, bytes]) -> dict[int, NDArray[np.uint32]]:
        """The sum of every segment that is opened, given a digest of the values that its holders were sent."""
        session = self.session
        if self.survivors is None or len(self._answers) < session.threshold:
            given, needed = len(self._answers), session.threshold
            raise SecureError(f"only {given} clients have answered, and {needed} are needed: nothing is opened")
        answers = dict(list(self._answers.items())[: session.threshold])
        points = [session.point(client) for client in answers]
        weights = weights_at_zero(points)

        def secret(owner: int, place: int) -> bytes:
            shares = (answer.shares[owner][1][place] for answer in answers.values())
            return combine(dict(zip(points, shares, strict=True)), weights)

        sharers = digest_clients(self.sharers)
        streams: dict[int, list[tuple[bytes, int]]] = {segment: [] for segment in self._opened()}

        def take_off(owner: int, other: int | None, segment: int, seed: bytes) -> None:
            """Take off a survivor's own mask, or that which it has with another client."""
            sign = -1 if other is None or owner > other else 1
            streams[segment].append((mask_key(seed, segment, session.digest, sharers, values[segment]), sign))

        for owner in self.survivors:
            for place, segment in enumerate(segment for segment in session.held[owner] if segment in streams):
                take_off(owner, None, segment, secret(owner, place))
        for gone in (client for client in self.sharers if client not in self.survivors):
            seeds = self._seeds(gone, secret(gone, 0))
            for owner in self.survivors:
                for segment in set(session.held[owner]) & set(session.held[gone]) & streams.keys():
                    take_off(owner, gone, segment, seeds[owner])
        found = {}
        for segment, own in streams.items():
            found[segment] = self._totals[segment].copy()
            add_masks(found[segment], own)
        return found

    def _opened(self) -> list[int]:
        assert self.survivors is not None
        session = self.session
        return open_segments(session.held, self.survivors, session.min_clients, every_class=session.every_class)

    def _wanted(self, owner: int) -> tuple[int, int]:
        """The kind and the number of shares that a client is asked for."""
        assert self.survivors is not None
        if owner not in self.survivors:
            return GONE, 1
        return ALIVE, len(set(self.session.held[owner]) & set(self._opened()))

    def _seeds(self, client: int, key: bytes) -> dict[int, bytes]:
        """The seeds that a client which is gone had with every other one."""
        others = [member.client for member in self.session.members if member.client != client]
        text = unseal_seeds(key, self.session, self._bundles[client].seeds)
        if len(text) != SECRET_BYTES * len(others):
            raise SecureError(f"client {client} has not left a seed for every other client")
        return {other: text[SECRET_BYTES * n : SECRET_BYTES * (n + 1)] for n, other in enumerate(others)}
