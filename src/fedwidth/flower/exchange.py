"""Messages out, replies in: pushed together, pulled one at a time as they arrive, until a deadline."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

POLL_SECONDS = 0.2
NOT_PULLED = "Failed to pull object with ID '"


def exchange(
    grid: Grid,
    contents: Mapping[int, RecordDict],
    kind: str,
    *,
    seconds: float,
    group: str = "",
) -> Iterator[tuple[int, Message]]:
    """Send each node its content and yield (node, reply) as replies arrive; ends when all are in or time is up.

    Messages live as long as the wait: a node that comes back
    later finds none.
    """
    nodes = list(contents)
    messages = [Message(contents[node], node, kind, ttl=seconds, group_id=group) for node in nodes]
    # A list: some grids take generators, the one of a deployment does not.
    waiting = {name: node for name, node in zip(grid.push_messages(messages), nodes, strict=True) if name}
    del messages
    deadline = time.monotonic() + seconds
    while waiting:
        got = False
        for reply in grid.pull_messages(list(waiting)):
            node = waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is not None:
                got = True
                yield node, reply
        if not got:  # and where replies keep coming in, those that are there count although time is up
            if time.monotonic() >= deadline:
                return
            time.sleep(POLL_SECONDS)


def error_of(reply: Message) -> str | None:
    """Why a reply holds nothing, or None."""
    if reply.has_error():
        reason = " ".join((reply.error.reason or f"error {reply.error.code}").split())
        _, _, why = reason.partition(NOT_PULLED)[2].partition("': ")  # what `bounds` says, in Flower's words
        return why or f"it failed: {reason[:300]}"
    return None if reply.has_content() else "its reply is empty"
