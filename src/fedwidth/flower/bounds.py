"""A node must not fill the server's memory or hold up a round: replies are pulled one at a time, up to a size.

Flower itself bounds nothing but an honest node's chunks (5 MiB): what a node uploads, the SuperLink stores and the
ServerApp pulls. So the pulling is wrapped here, and `superlink` bounds what is stored.
"""

from __future__ import annotations

import time
from typing import Any

from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.superlink.grid.http_grid import HttpGrid

PATIENCE_SECONDS = 60.0
"""How long a reply whose upload has stopped half-way may hold up the others."""


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


class _Bounded:
    """A runtime client that hands out one reply at a time and refuses to pull more than `most` bytes of it."""

    def __init__(self, client: Any) -> None:
        self.most, self.deadline = 0, 0.0
        self._client = client
        self._pulled, self._progress = 0, 0.0
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
        self._pulled, self._progress = 0, time.monotonic()
        first, self._kept = self._kept[:1], self._kept[1:]
        return PullAppMessagesResponse(
            messages_list=[message for message, _ in first], message_object_trees=[tree for _, tree in first]
        )

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:
        """One of the reply's parts."""
        if self._pulled > self.most:
            raise ObjectPullError(request.object_id, self._too_large)
        response: PullObjectResponse = self._client.PullObject(request)
        now = time.monotonic()
        if response.object_available:
            self._progress = now
        elif now > min(self._progress + PATIENCE_SECONDS, self.deadline):
            raise ObjectPullError(request.object_id, "its upload stopped half-way")
        self._pulled += len(response.object_content)
        if self._pulled > self.most:
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
        return f"its answer is refused unread: it has more than {self.most:,} bytes"
