"""Sends messages to nodes and collects the replies: pushed together, pulled one at a time as they arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedwidth.printable import printable

POLL_SECONDS = 0.2
"""How often the server looks for replies."""
NOT_PULLED = "Failed to pull object with ID '"
"""How Flower begins the reason of a reply that it could not fetch."""
NEVER_CAME = (3, 4, 5)
"""Flower's codes for a message or a reply that has expired, and for a node that is gone; its text says TTL for each."""


class Exchange:
    """Messages that are under way: each goes to one node, which answers once or never."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._waiting: dict[str, int] = {}

    @property
    def waiting(self) -> set[int]:
        """The nodes that have not answered yet."""
        return set(self._waiting.values())

    def send(self, contents: Mapping[int, RecordDict], kind: str, *, seconds: float, group: str = "") -> None:
        """Send each node its content. After so many seconds the message expires, for a node that comes back later."""
        nodes = list(contents)
        messages = [Message(contents[node], node, kind, ttl=seconds, group_id=group) for node in nodes]
        # A list: some grids take generators, the one of a deployment does not.
        ids = self.grid.push_messages(messages)
        self._waiting |= {id: node for id, node in zip(ids, nodes, strict=True) if id}

    def arrived(self) -> Iterator[tuple[int, Message]]:
        """The replies that have arrived by now, each with its node."""
        if self._waiting:
            for reply in self.grid.pull_messages(list(self._waiting)):
                node = self._waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    yield node, reply

    def replies(self, goes_on: Callable[[], bool]) -> Iterator[tuple[int, Message]]:
        """The replies as they arrive, each with its node, until all are there or `goes_on` says no.

        Replies that have arrived by then still come.
        """
        while self._waiting:
            got = False
            for pair in self.arrived():
                got = True
                yield pair
            if not got:
                if not goes_on():
                    return
                time.sleep(POLL_SECONDS)

    def forget(self, node: int) -> None:
        """Wait for a node's reply no longer."""
        self._waiting = {id: other for id, other in self._waiting.items() if other != node}


def within(seconds: float) -> Callable[[], bool]:
    """A function that returns True for so many seconds from now, and False after that."""
    deadline = time.monotonic() + seconds
    return lambda: time.monotonic() < deadline


def never_came(reply: Message) -> bool:
    """Whether this is Flower's own message that a reply has not come and will not come."""
    return reply.has_error() and reply.error.code in NEVER_CAME and NOT_PULLED not in (reply.error.reason or "")


def error_of(reply: Message) -> str | None:
    """Why a reply has no content, in words; None where it has some."""
    if reply.has_error():
        reason = " ".join((reply.error.reason or f"error {reply.error.code}").split())
        _, _, why = reason.partition(NOT_PULLED)[2].partition("': ")  # what `bounds` says, in Flower's words
        return printable(why) if why else f"it failed: {printable(reason)}"
    return None if reply.has_content() else "its reply is empty"
