"""Flower's SuperLink behind a guard.

    python -m fedwidth.flower.superlink [--most-bytes N] [--most-reply N] [--control any] …

The rest of the command line is `flower-superlink`'s own. Flower 1.41 serves nodes, operators and apps on one port, and
reads a request before it knows who sent it. The guard

- refuses request bodies above `--most-bytes` (16 MiB; honest parts are 5 MiB) unread, with status 413;
- refuses the parts of a reply beyond `--most-reply` bytes (128 MiB; set it to a little more than the model): Flower
  holds up to three times as much in memory, and gigabytes in its database lock it for all nodes;
- waits for a locked database longer than Flower's 5 seconds, after which SuperExec would give up for good and no run
  would start any more;
- lets only this machine register nodes, start runs and fetch results (`--control any` lifts it): else whoever reaches
  the port could register a key of their own, and node authentication would keep nobody out.
"""

from __future__ import annotations

import argparse
import ipaddress
import sys
from typing import Any

from fedwidth.errors import OptionError
from fedwidth.flower.versions import check_flower

MOST_BYTES, MOST_REPLY = 16 << 20, 128 << 20
MOST_KEYS = 100_000
LOCK_MILLISECONDS = "25000"
"""Below the 30 seconds after which Flower's own clients give up."""
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


def main() -> None:
    """Start the SuperLink with the guard in front."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--most-bytes", type=int, default=MOST_BYTES)
    parser.add_argument("--most-reply", type=int, default=MOST_REPLY)
    parser.add_argument("--control", choices=("local", "any"), default="local")
    own, rest = parser.parse_known_args()
    try:
        check_flower()
    except OptionError as error:
        raise SystemExit(f"error: {error}") from None
    from flwr.supercore import sql_mixin
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink

    configure = extensions.configure_app

    def guarded(app: Any) -> None:
        configure(app)
        app.add_middleware(Guard, most=own.most_bytes, most_reply=own.most_reply, local_control=own.control == "local")

    extensions.configure_app = guarded
    sql_mixin.SQLITE_PRAGMAS = (*sql_mixin.SQLITE_PRAGMAS, ("busy_timeout", LOCK_MILLISECONDS))
    sys.argv = ["flower-superlink", *rest]
    flower_superlink()


if __name__ == "__main__":
    main()
