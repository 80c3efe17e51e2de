"""Keeps nodes from filling the ServerApp's memory or holding up a round: replies are pulled singly, up to a size.

Flower limits only the chunks of an honest node (5 MiB each). Whatever a node uploads, the SuperLink stores and the
ServerApp pulls. So the ServerApp's pulling is limited here, and the SuperLink's storing in `access/guard.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fedwidth.deployment.versions import check_flower

check_flower()  # what is imported next is Flower's own business, and elsewhere in other versions

from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse  # noqa: E402
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError  # noqa: E402
from flwr.superlink.grid.http_grid import HttpGrid  # noqa: E402

STALLED_SECONDS = 60.0
"""How long a reply whose upload has stopped half-way may hold up the others."""
UNREAD = "refused unread"
"""Words in the reason of a reply that was too large to be pulled."""


def bound_replies(grid: Grid, max_bytes: int, *, seconds: float) -> None:
    """Let the grid pull at most `max_bytes` of each reply, and wait for no reply longer than `seconds` from now.

    A reply that is larger, or is never complete, arrives as an error message. Only a deployment's grid pulls over a
    network; every other grid is left as it is.
    """
    if not isinstance(grid, HttpGrid):
        return
    client: Any = grid._runtime_client
    if not isinstance(client, _Bounded):
        client = grid._client = _Bounded(client)  # type: ignore[assignment]
    client.max_bytes, client.deadline = max_bytes, time.monotonic() + seconds


@dataclass
class _Reply:
    """The reply that is being pulled."""

    objects: frozenset[str] = frozenset()
    """The ids of the objects that Flower has taken it apart into."""
    pulled: int = 0
    """How many of its bytes have come."""
    progress: float = field(default_factory=time.monotonic)
    """When its last object came."""


class _Bounded:
    """Flower's runtime client, which hands out one reply at a time and refuses to pull more than `max_bytes` of it."""

    def __init__(self, client: Any) -> None:
        self.max_bytes, self.deadline = 0, 0.0
        self._client, self._reply = client, _Reply()
        self._kept: list[tuple[Any, Any]] = []
        # Called once the headers are there and before the body is read.
        client._client.event_hooks["response"].append(self._check_length)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:
        """One of the replies that have arrived; the others are kept for the next calls."""
        wanted = set(request.message_ids)
        self._kept = [pair for pair in self._kept if pair[0].metadata.reply_to_message_id in wanted]
        if not self._kept:
            response = self._client.PullMessages(request)
            self._kept = list(zip(response.messages_list, response.message_object_trees, strict=True))
        first, self._kept = self._kept[:1], self._kept[1:]
        self._reply = _Reply(frozenset(id for _, tree in first for id in _object_ids(tree)))
        return PullAppMessagesResponse(
            messages_list=[message for message, _ in first], message_object_trees=[tree for _, tree in first]
        )

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:
        """One object of the present reply."""
        # Flower pulls several side by side, and goes on with those of a refused reply while the next reply is begun:
        # each counts for its own reply, or is refused.
        reply = self._reply
        if reply.pulled > self.max_bytes or request.object_id not in reply.objects:
            raise ObjectPullError(request.object_id, self._too_large)
        response: PullObjectResponse = self._client.PullObject(request)
        now = time.monotonic()
        if response.object_available:
            reply.progress = now
        elif now > min(reply.progress + STALLED_SECONDS, self.deadline):
            raise ObjectPullError(request.object_id, "its upload stopped half-way")
        reply.pulled += len(response.object_content)
        if reply.pulled > self.max_bytes:
            raise ObjectPullError(request.object_id, self._too_large)
        return response

    def _check_length(self, response: Any) -> None:
        if response.request.url.path.endswith("/pull-object"):
            length = int(response.headers.get("content-length", 0))
            if length > self.max_bytes + 4096:
                response.close()
                raise ObjectPullError("", self._too_large)

    @property
    def _too_large(self) -> str:
        return f"its answer is {UNREAD}: it has more than {self.max_bytes:,} bytes"


def _object_ids(tree: Any) -> Iterator[str]:
    """The ids of a message and of all objects that it is made of."""
    yield tree.object_id
    for child in tree.children:
        yield from _object_ids(child)
