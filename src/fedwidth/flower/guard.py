"""What a stranger may send to Flower's SuperLink, and where to."""

from __future__ import annotations

import ipaddress
from typing import Any

MOST_BYTES, MOST_REPLY = 16 << 20, 128 << 20
MOST_KEYS = 100_000
KEY = b"flwr-public-key"
"""The header in which a node says who it is; what it uploads counts once Flower has checked that."""


class Guard:
    """ASGI middleware: what a stranger may send, and where to."""

    def __init__(
        self, app: Any, *, most: int = MOST_BYTES, most_reply: int = MOST_REPLY, local_control: bool = True
    ) -> None:
        self.app, self.most, self.most_reply, self.local_control = app, most, most_reply, local_control
        self._uploaded: dict[bytes, int] = {}
        """Bytes of each node's present reply."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Refuse, or pass on while counting."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        is_node = scope["path"].startswith("/v1/fleet/")
        if self.local_control and not is_node and scope["path"] != "/health" and not is_loopback(scope.get("client")):
            await _refuse(send, 403, "only nodes may come in from outside")
            return
        headers = dict(scope["headers"])
        length, key = headers.get(b"content-length", b"0"), headers.get(KEY, b"")
        if is_node and (not length.isdigit() or int(length) > self.most):
            await _refuse(send, 413, f"a request may have {self.most} bytes")
            return
        is_part = scope["path"] == "/v1/fleet/push-object"
        if is_part and self._uploaded.get(key, 0) + int(length) > self.most_reply:
            await _refuse(send, 413, f"a reply may have {self.most_reply} bytes")
            return
        read = 0

        async def counted() -> Any:
            nonlocal read
            event = await receive()
            read += len(event.get("body", b""))
            if is_node and read > self.most:  # a body that did not say how long it is
                return {"type": "http.disconnect"}
            return event

        async def noted(event: Any) -> None:
            if event["type"] == "http.response.start" and event["status"] == 200:
                self._note(scope["path"], key, read)
            await send(event)

        await self.app(scope, counted, noted)

    def _note(self, path: str, key: bytes, read: int) -> None:
        """Add what Flower took; a new reply begins with its message."""
        if len(self._uploaded) > MOST_KEYS:
            self._uploaded.clear()
        if path == "/v1/fleet/push-messages":
            self._uploaded[key] = 0
        elif path == "/v1/fleet/push-object":
            self._uploaded[key] = self._uploaded.get(key, 0) + read


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
