"""A device's side of secure sums: it shares, masks and opens, and refuses what a lying server would ask.

    share   draws secrets for a session, and leaves shares of them with the other clients
    mask    adds its masks to its words
    open    says, once for every round, what opens the sums of those who are alive

Secrets are in the memory of this object alone, and are forgotten when the round is opened.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from fedwidth.errors import SecureError
from fedwidth.secure.keys import agree, check_key, derive, seal, sign_key, unseal
from fedwidth.secure.masks import add_masks, mask_key
from fedwidth.secure.messages import ALIVE, GONE, NONCE_BYTES, Answer, Bundle, decode_shares, encode_shares
from fedwidth.secure.rules import open_segments, threshold
from fedwidth.secure.session import Session, digest_clients, digest_values, number
from fedwidth.secure.sharing import SECRET_BYTES, split

MAX_SESSIONS = 4
"""Sessions that a device holds secrets of: that of this round, of the next one, and attempts that failed. The oldest
are forgotten."""


@dataclass(repr=False)
class _Held:
    """What a device knows of one session."""

    session: Session
    seeds_key: bytes
    own_seeds: Mapping[int, bytes]
    """By segment the seed of the mask that is the device's alone."""
    shares: dict[int, list[bytes]] = field(default_factory=dict)
    """By client the shares of its secrets: that of the key of its seeds, then those of its own seeds by segment."""
    has_masked: bool = False


class Device:
    """One client in one run, with a key pair that is made for the run.

    `opened` is the last round that the client has opened, in whatever run with the same training; `note` is told of
    every other one before the device answers, to be remembered longer than the device lives.
    """

    def __init__(
        self,
        client: int,
        run: bytes,
        *,
        signing: ec.EllipticCurvePrivateKey,
        roster: Mapping[int, ec.EllipticCurvePublicKey],
        min_clients: int,
        every_class: bool = False,
        opened: int = -1,
        note: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.client, self.run = client, run
        self.min_clients, self.every_class = min_clients, every_class
        self._signing, self._roster = signing, roster
        self._private = X25519PrivateKey.generate()
        self.key = self._private.public_key().public_bytes_raw()
        self._checked: set[tuple[int, bytes]] = {(client, self.key)}
        self._held: dict[tuple[int, int], _Held] = {}
        self._opened, self._note = opened, note

    def introduce(self) -> tuple[bytes, bytes]:
        """The device's public key in this run, and its signature."""
        return self.key, sign_key(self._signing, self.run, self.client, self.key)

    def session(self, round: int, attempt: int) -> Session:
        """The session of an attempt at a round in which the device has shared."""
        return self._find(round, attempt).session

    def share(self, session: Session) -> Bundle:
        """Take part in a session: secrets are drawn, and shares of them made for all others."""
        self._check(session)
        others = [member for member in session.members if member.client != self.client]
        agreed = {member.client: agree(self._private, member.key) for member in others}
        own = session.by_client[self.client].segments
        held = _Held(session, os.urandom(SECRET_BYTES), {segment: os.urandom(SECRET_BYTES) for segment in own})
        points = [session.point(member.client) for member in session.members]
        secrets = [held.seeds_key, *held.own_seeds.values()]
        shares = [split(secret, points, session.threshold) for secret in secrets]
        letters = {}
        for member in session.members:
            theirs = [share[session.point(member.client)] for share in shares]
            if member.client == self.client:
                held.shares[self.client] = theirs
                continue
            nonce, text = os.urandom(NONCE_BYTES), encode_shares(self.client, member.client, theirs)
            key = derive(agreed[member.client], b"letter", session.digest, length=32)
            letters[member.client] = nonce + seal(key, nonce, text, self._about(session, self.client, member.client))
        seeds = b"".join(pair_seed(agreed[member.client], session) for member in others)
        while len(self._held) >= MAX_SESSIONS:
            del self._held[min(self._held)]
        self._held[session.round, session.attempt] = held
        return Bundle(seal_seeds(held.seeds_key, session, seeds), letters)

    def mask(
        self,
        round: int,
        attempt: int,
        words: Mapping[int, NDArray[np.uint32]],
        values: Mapping[int, NDArray[np.generic]],
        letters: Mapping[int, bytes],
    ) -> NDArray[np.uint32]:
        """The words of the device, segment after segment, with its masks.

        `values` are what it was sent of each segment, and `letters` those of who has shared.
        """
        held = self._find(round, attempt)
        session, own = held.session, held.session.held[self.client]
        if held.has_masked:
            raise SecureError(f"client {self.client} has sent its words of round {round} already")
        lengths = {segment: session.lengths[segment] for segment in own}
        if {segment: word.size for segment, word in words.items()} != lengths:
            found, held_words = sum(word.size for word in words.values()), sum(lengths.values())
            raise SecureError(
                f"client {self.client} holds {held_words} words of 32 bits, not {found}, or other segments"
            )
        if len(letters) + 1 < session.threshold:
            raise SecureError(f"only {len(letters) + 1} clients have shared, and {session.threshold} are needed")
        opened = {sender: self._read(session, sender, letter) for sender, letter in letters.items()}
        held.shares |= opened
        sharers = digest_clients(list(held.shares))
        seeds = {client: pair_seed(agree(self._private, session.by_client[client].key), session) for client in opened}
        masked, at = np.concatenate([words[segment] for segment in own]), 0
        for segment, length in lengths.items():
            about = (segment, session.digest, sharers, digest_values(values[segment]))
            streams = [(mask_key(held.own_seeds[segment], *about), 1)]
            streams += [
                (mask_key(seed, *about), 1 if self.client > client else -1)
                for client, seed in seeds.items()
                if segment in session.held[client]
            ]
            add_masks(masked[at : at + length], streams)
            at += length
        held.has_masked = True
        return masked

    def open(self, round: int, attempt: int, survivors: Sequence[int]) -> Answer:
        """What opens the sums of these clients; the device answers once for a round, whatever the attempt."""
        held = self._find(round, attempt)
        session, alive = held.session, set(survivors)
        if not held.has_masked:
            raise SecureError(f"client {self.client} is to open round {round} before it has sent its words")
        if len(alive) != len(survivors) or not alive <= held.shares.keys():
            raise SecureError("the server names a client as alive twice, or one that has not shared")
        if self.client not in alive:
            raise SecureError(f"the server says that client {self.client} is gone")
        if len(alive) < session.threshold:
            raise SecureError(f"only {len(alive)} clients are alive, and {session.threshold} are needed")
        opened = open_segments(session.held, alive, session.min_clients, every_class=session.every_class)
        found: dict[int, tuple[int, tuple[bytes, ...]]] = {}
        for owner, (key_share, *own_shares) in held.shares.items():
            by_segment = zip(session.held[owner], own_shares, strict=True)
            chosen = tuple(share for segment, share in by_segment if segment in opened)
            found[owner] = (ALIVE, chosen) if owner in alive else (GONE, (key_share,))
        self._note(round)
        self._opened = round
        self._held = {at: own for at, own in self._held.items() if at[0] > round}
        return Answer(found)

    def _check(self, session: Session) -> None:
        """Refuse a session in which the device's part would not be hidden."""
        clients, keys = [member.client for member in session.members], {member.key for member in session.members}
        own = session.by_client.get(self.client)
        if session.run != self.run or own is None or own.key != self.key:
            raise SecureError(f"the session is of another run, or has not the key of client {self.client}")
        if clients != sorted(set(clients)) or len(keys) != len(clients):
            raise SecureError("the session has a client or a key twice, or not in their order")
        if session.min_clients < self.min_clients:
            raise SecureError(f"the session opens sums of {session.min_clients}, this device's of {self.min_clients}")
        if self.every_class and not session.every_class:
            raise SecureError("the session would open sums in which a width has too few clients")
        if not threshold(len(clients)) <= session.threshold <= len(clients):
            raise SecureError(f"the session needs {session.threshold} answers of {len(clients)} clients: too few")
        if session.fixed_point.clients < len(clients):
            raise SecureError(f"the session's words are for {session.fixed_point.clients} clients, not {len(clients)}")
        if session.round <= self._opened:
            raise SecureError(f"client {self.client} has opened round {self._opened}: none up to it is opened again")
        if (session.round, session.attempt) in self._held:
            raise SecureError(f"client {self.client} has shared for round {session.round} already")
        for member in session.members:
            if any(segment not in session.lengths for segment in member.segments):
                raise SecureError(f"the session has no length of a segment that client {member.client} holds")
            if (member.client, member.key) not in self._checked:
                if member.client not in self._roster:
                    raise SecureError(f"client {member.client} is not on the roster of this device")
                check_key(self._roster[member.client], self.run, member.client, member.key, member.signature)
                self._checked.add((member.client, member.key))

    def _find(self, round: int, attempt: int) -> _Held:
        if (round, attempt) not in self._held:
            raise SecureError(f"client {self.client} holds nothing of round {round}, attempt {attempt}")
        return self._held[round, attempt]

    def _read(self, session: Session, sender: int, letter: bytes) -> list[bytes]:
        """The shares in a letter."""
        if sender == self.client or sender not in session.by_client:
            raise SecureError(f"a letter is from client {sender}, which is no other client of the session")
        key = derive(agree(self._private, session.by_client[sender].key), b"letter", session.digest, length=32)
        nonce, sealed = letter[:NONCE_BYTES], letter[NONCE_BYTES:]
        if len(nonce) < NONCE_BYTES:
            raise SecureError(f"the letter from client {sender} is too short")
        text = unseal(key, nonce, sealed, self._about(session, sender, self.client))
        return decode_shares(text, sender=sender, to=self.client, number=1 + len(session.held[sender]))

    @staticmethod
    def _about(session: Session, sender: int, to: int) -> bytes:
        return session.digest + number(sender) + number(to)


def pair_seed(agreed: bytes, session: Session) -> bytes:
    """The seed of the masks of two clients in one session."""
    return derive(agreed, b"pair", session.digest)


def seal_seeds(key: bytes, session: Session, seeds: bytes) -> bytes:
    """A client's seeds with all others, for the server to keep: it can read them only if the client is gone."""
    return seal(derive(key, b"seeds", session.digest, length=32), bytes(NONCE_BYTES), seeds)


def unseal_seeds(key: bytes, session: Session, sealed: bytes) -> bytes:
    """The seeds of a client that is gone."""
    return unseal(derive(key, b"seeds", session.digest, length=32), bytes(NONCE_BYTES), sealed)
