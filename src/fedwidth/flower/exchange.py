"""Messages out, replies in: pushed together, pulled one at a time as they arrive, for as long as one cares to wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedwidth.flower.printable import printable

POLL_SECONDS = 0.2
NOT_PULLED = "Failed to pull object with ID '"
NEVER_CAME = (3, 4, 5)
"""Flower's codes for a message or reply that has expired, and for a node that is gone: it says TTL for all of them."""


class Exchange:
    """Messages that are under way: each to one node, answered once or never."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._waiting: dict[str, int] = {}

    @property
    def waiting(self) -> set[int]:
        """Nodes that have not answered yet."""
        return set(self._waiting.values())

    def send(self, contents: Mapping[int, RecordDict], kind: str, *, seconds: float, group: str = "") -> None:
        """Send each node its content. A message lives for so many seconds: a node that comes back later finds none."""
        nodes = list(contents)
        messages = [Message(contents[node], node, kind, ttl=seconds, group_id=group) for node in nodes]
        # A list: some grids take generators, the one of a deployment does not.
        names = self.grid.push_messages(messages)
        self._waiting |= {name: node for name, node in zip(names, nodes, strict=True) if name}

    def arrived(self) -> Iterator[tuple[int, Message]]:
        """The replies that are there now."""
        if self._waiting:
            for reply in self.grid.pull_messages(list(self._waiting)):
                node = self._waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    yield node, reply

    def replies(self, patient: Callable[[], bool]) -> Iterator[tuple[int, Message]]:
        """Replies as they arrive, until all are in or one is no longer `patient`; those that are there still count."""
        while self._waiting:
            got = False
            for pair in self.arrived():
                got = True
                yield pair
            if not got:
                if not patient():
                    return
                time.sleep(POLL_SECONDS)

    def forget(self, node: int) -> None:
        """Expect nothing from a node any longer."""
        self._waiting = {name: other for name, other in self._waiting.items() if other != node}


def within(seconds: float) -> Callable[[], bool]:
    """Patience that ends after so many seconds."""
    deadline = time.monotonic() + seconds
    return lambda: time.monotonic() < deadline


def never_came(reply: Message) -> bool:
    """Whether a reply is Flower's word that there is none, and none to come."""
    return reply.has_error() and reply.error.code in NEVER_CAME and NOT_PULLED not in (reply.error.reason or "")


def error_of(reply: Message) -> str | None:
    """Why a reply holds nothing, or None."""
    if reply.has_error():
        reason = " ".join((reply.error.reason or f"error {reply.error.code}").split())
        _, _, why = reason.partition(NOT_PULLED)[2].partition("': ")  # what `bounds` says, in Flower's words
        return printable(why) if why else f"it failed: {printable(reason)}"
    return None if reply.has_content() else "its reply is empty"
