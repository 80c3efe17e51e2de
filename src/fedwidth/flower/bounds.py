"""A node must not fill the server's memory or hold up a round: replies are pulled one at a time, up to a size.

Flower itself bounds nothing but an honest node's chunks (5 MiB): what a node uploads, the SuperLink stores and the
ServerApp pulls. So the pulling is wrapped here, and `superlink` bounds what is stored.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fedwidth.flower.versions import check_flower

check_flower()  # what is imported next is Flower's own business, and elsewhere in other versions

from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse  # noqa: E402
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError  # noqa: E402
from flwr.superlink.grid.http_grid import HttpGrid  # noqa: E402

PATIENCE_SECONDS = 60.0
"""How long a reply whose upload has stopped half-way may hold up the others."""
UNREAD = "refused unread"


def bound_replies(grid: Grid, most: int, *, seconds: float) -> None:
    """Let the grid pull at most `most` bytes of each reply, and wait for none beyond `seconds` from now.

    A larger one, or one that is never complete, arrives as an error message.

    Only a deployment's grid pulls over a network; others are left as they are.
    """
    if not isinstance(grid, HttpGrid):
        return
    client: Any = grid._runtime_client
    if not isinstance(client, _Bounded):
        client = grid._client = _Bounded(client)  # type: ignore[assignment]
    client.most, client.deadline = most, time.monotonic() + seconds


@dataclass
class _Reply:
    """The reply that is pulled now."""

    parts: frozenset[str] = frozenset()
    pulled: int = 0
    progress: float = field(default_factory=time.monotonic)
    """When its last part came."""


class _Bounded:
    """A runtime client that hands out one reply at a time and refuses to pull more than `most` bytes of it."""

    def __init__(self, client: Any) -> None:
        self.most, self.deadline = 0, 0.0
        self._client, self._reply = client, _Reply()
        self._kept: list[tuple[Any, Any]] = []
        # Called once the headers are there and before the body is read.
        client._client.event_hooks["response"].append(self._check_length)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:
        """One of the replies that are there; the rest is kept for the next call."""
        wanted = set(request.message_ids)
        self._kept = [pair for pair in self._kept if pair[0].metadata.reply_to_message_id in wanted]
        if not self._kept:
            response = self._client.PullMessages(request)
            self._kept = list(zip(response.messages_list, response.message_object_trees, strict=True))
        first, self._kept = self._kept[:1], self._kept[1:]
        self._reply = _Reply(frozenset(name for _, tree in first for name in _names(tree)))
        return PullAppMessagesResponse(
            messages_list=[message for message, _ in first], message_object_trees=[tree for _, tree in first]
        )

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:
        """One of the reply's parts."""
        # Flower pulls several side by side, and goes on with those of a refused reply while the next one is begun:
        # they count for their own reply, or are refused.
        reply = self._reply
        if reply.pulled > self.most or request.object_id not in reply.parts:
            raise ObjectPullError(request.object_id, self._too_large)
        response: PullObjectResponse = self._client.PullObject(request)
        now = time.monotonic()
        if response.object_available:
            reply.progress = now
        elif now > min(reply.progress + PATIENCE_SECONDS, self.deadline):
            raise ObjectPullError(request.object_id, "its upload stopped half-way")
        reply.pulled += len(response.object_content)
        if reply.pulled > self.most:
            raise ObjectPullError(request.object_id, self._too_large)
        return response

    def _check_length(self, response: Any) -> None:
        if response.request.url.path.endswith("/pull-object"):
            length = int(response.headers.get("content-length", 0))
            if length > self.most + 4096:
                response.close()
                raise ObjectPullError("", self._too_large)

    @property
    def _too_large(self) -> str:
        return f"its answer is {UNREAD}: it has more than {self.most:,} bytes"


def _names(tree: Any) -> Iterator[str]:
    """Of a message's parts, itself included."""
    yield tree.object_id
    for part in tree.children:
        yield from _names(part)
