"""Limits what devices and strangers may send to Flower's SuperLink: where to, how much, and for how long."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Callable
from typing import Any

from fedwidth.deployment.access.connections import Strangers

MAX_BODY, MAX_REPLY = 16 << 20, 128 << 20
"""Bytes of one request, and of all requests that make up one reply."""
MIN_REPLY, TIMES_SENT = 1 << 20, 8
"""A reply may have 1 MiB, and eight times what the node was sent: no method answers with so much."""
MAX_ACTIVATION = 4096
"""Bytes of the request by which a node asks to be let in, its key among them."""
BODY_SECONDS, BODY_RATE = 20.0, 8192
"""How long a body may take: so many seconds, and one more for each so many bytes that have come."""
MAX_KEYS = 100_000
"""Nodes whose uploads are counted; beyond that many, all counts begin anew."""
KEY = b"flwr-public-key"
"""The header in which a node sends its public key; what it uploads counts once Flower has checked its signature."""
ACTIVATE = "/v1/fleet/activate-node"
"""The path by which a node asks to be let in."""


class Replies:
    """Counts how much each node has uploaded of its present reply, and knows how much it may upload."""

    def __init__(self, max_reply: int) -> None:
        self.max_reply = max_reply
        self._sent: dict[bytes, int] = {}
        """Bytes that each node was sent since its last reply; unknown after a restart."""
        self._allowed: dict[bytes, int] = {}
        self._uploaded: dict[bytes, int] = {}

    def allowed(self, key: bytes) -> int:
        """How many bytes the node's present reply may have."""
        return self._allowed.get(key, self.max_reply)

    def takes(self, key: bytes, length: int) -> bool:
        """Whether the node may upload so many bytes more."""
        return self._uploaded.get(key, 0) + length <= self.allowed(key)

    def sent(self, key: bytes, length: int) -> None:
        """Count bytes that a node was sent."""
        self._sent[key] = self._sent.get(key, 0) + length

    def took(self, path: str, key: bytes, read: int) -> None:
        """Count bytes that Flower took from a node; its message begins a new reply."""
        for counts in (self._sent, self._allowed, self._uploaded):
            if len(counts) > MAX_KEYS:
                counts.clear()
        if path == "/v1/fleet/push-messages":
            sent = self._sent.pop(key, None)
            self._uploaded[key] = 0
            self._allowed[key] = self.max_reply if sent is None else min(self.max_reply, MIN_REPLY + TIMES_SENT * sent)
        elif path == "/v1/fleet/push-object":
            self._uploaded[key] = self._uploaded.get(key, 0) + read


class Guard:
    """ASGI middleware in front of Flower's application, which refuses what goes beyond the limits of this file."""

    def __init__(
        self,
        app: Any,
        *,
        max_body: int = MAX_BODY,
        max_reply: int = MAX_REPLY,
        local_control: bool = True,
        strangers: Strangers | None = None,
        is_registered: Callable[[Any], bool] | None = None,
        body_seconds: float = BODY_SECONDS,
        body_rate: int = BODY_RATE,
    ) -> None:
        """`is_registered` says from a request's headers whether a registered node signed it (None: all count as such).

        With `local_control`, only processes of this machine may make requests that are not a node's.
        """
        self.app, self.max_body, self.local_control = app, max_body, local_control
        self.strangers = Strangers() if strangers is None else strangers
        self.is_registered = is_registered
        self.replies = Replies(max_reply)
        self.body_seconds, self.body_rate = body_seconds, body_rate

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Refuse a request, or pass it on to Flower and count its bytes."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = await self._refusal(scope)
        if refusal is not None:
            await _refuse(send, *refusal)
            return
        with self.strangers.serving(scope.get("client")):
            await self._pass_on(scope, receive, send)

    async def _refusal(self, scope: Any) -> tuple[int, str] | None:
        """The status and the reason by which a request is refused for its headers alone; None where it is not."""
        path, headers = scope["path"], dict(scope["headers"])
        is_node = path.startswith("/v1/fleet/")
        if self.local_control and not is_node and path != "/health" and not is_loopback(scope.get("client")):
            return 403, "only nodes may come in from outside"
        if not is_node:
            return None
        if sum(name == KEY for name, _ in scope["headers"]) > 1:
            return 400, "a request has one key"
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self.max_body:
            return 413, f"a request may have {self.max_body} bytes"
        if self.is_registered is not None:
            if await asyncio.to_thread(self.is_registered, scope):
                self.strangers.vouch_for(scope.get("client"))
            elif path != ACTIVATE or int(length) > MAX_ACTIVATION:  # Flower says why it does not let a node in
                return 401, "this node is not registered"
        key = headers.get(KEY, b"")
        if path == "/v1/fleet/push-object" and not self.replies.takes(key, int(length)):
            return 413, f"a reply may have {self.replies.allowed(key)} bytes"
        return None

    async def _pass_on(self, scope: Any, receive: Any, send: Any) -> None:
        path, key = scope["path"], dict(scope["headers"]).get(KEY, b"")
        is_node = path.startswith("/v1/fleet/")
        status = read = 0
        whole, begun = False, time.monotonic()

        async def counted() -> Any:
            nonlocal read, whole
            if whole:  # what comes next is the end of the connection, for which an answer may wait
                return await receive()
            left = begun + self.body_seconds + read / self.body_rate - time.monotonic()
            try:
                event = await asyncio.wait_for(receive(), max(left, 0.0))
            except TimeoutError:
                self.strangers.cut(scope.get("client"))
                return {"type": "http.disconnect"}
            read += len(event.get("body", b""))
            whole = not event.get("more_body", False)
            if is_node and read > self.max_body:  # a body that did not say how long it is
                return {"type": "http.disconnect"}
            return event

        async def noted(event: Any) -> None:
            nonlocal status
            if event["type"] == "http.response.start":
                status = event["status"]
                if status == 200 and path.startswith("/v1/"):
                    self.strangers.vouch_for(scope.get("client"))
                    self.replies.took(path, key, read)
            elif status == 200 and path == "/v1/fleet/pull-object":
                self.replies.sent(key, len(event.get("body", b"")))
            await send(event)

        await self.app(scope, counted, noted)


def is_loopback(client: tuple[str, int] | None) -> bool:
    """Whether a connection comes from this machine.

    >>> is_loopback(("127.0.0.1", 40000)), is_loopback(("192.168.1.7", 40000)), is_loopback(None)
    (True, False, False)
    """
    try:
        return client is not None and ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


async def _refuse(send: Any, status: int, why: str) -> None:
    headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": why.encode()})
