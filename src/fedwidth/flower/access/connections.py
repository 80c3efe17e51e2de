"""Connections that nobody has vouched for yet: few, and short.

Between a connection and a request whose sender is known lie the TLS handshake and the headers, and whoever reaches the
port can stop there. So such connections are counted from the moment they are accepted: beyond `most_each` of one
address, or `most` in all, the oldest is closed to let the newest in, because a device is done with this within a
fraction of a second and one that stalls is not. What lasts longer than `seconds` is closed too.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

MOST, MAX_EACH, SECONDS = 1024, 256, 10.0
SPARE_FILES = 256
"""Descriptors kept for what is not a stranger: known devices, the database, the log."""

Address = tuple[str, int]


class Strangers:
    """The connections that are not vouched for, oldest first."""

    def __init__(self, *, most: int = MOST, most_each: int = MAX_EACH, seconds: float = SECONDS) -> None:
        self.most, self.most_each, self.seconds = most, most_each, seconds
        self._there: dict[Address, Connection] = {}
        self._all: dict[Address, Connection] = {}
        """Those that were vouched for included."""
        self._serving: set[Address] = set()

    def __len__(self) -> int:
        return len(self._there)

    def enter(self, connection: Connection) -> None:
        """Count a new connection, and close the oldest where that makes too many."""
        host = connection.address[0]
        same = [address for address in self._there if address[0] == host]
        if len(same) >= self.most_each:
            self._there[same[0]].cut()
        elif len(self._there) >= self.most:
            self._there[next(iter(self._there))].cut()
        self._there[connection.address] = self._all[connection.address] = connection
        self._watch(connection)

    def leave(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        for connections in (self._there, self._all):
            if connections.get(connection.address) is connection:
                del connections[connection.address]

    def cut(self, client: Any) -> None:
        """End a connection, whoever's it is."""
        if (connection := self._all.get(_address(client))) is not None:
            connection.cut()

    def vouch_for(self, client: Any) -> None:
        """From now on this connection is no stranger's."""
        self._there.pop(_address(client), None)

    @contextmanager
    def serving(self, client: Any) -> Iterator[None]:
        """While a request of this connection is answered its time does not run out: bodies have limits of their own."""
        address = _address(client)
        self._serving.add(address)
        try:
            yield
        finally:
            self._serving.discard(address)

    def _watch(self, connection: Connection) -> None:
        asyncio.get_running_loop().call_later(self.seconds, self._expire, connection)

    def _expire(self, connection: Connection) -> None:
        if self._there.get(connection.address) is not connection:
            return
        if connection.address in self._serving:
            self._watch(connection)
        else:
            connection.cut()


class Listener(socket.socket):
    """A listening socket whose connections are counted from their first moment, before TLS has begun.

    The event loop must be asyncio's own, which accepts by this method.
    """

    strangers: Strangers

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection."""
        plain, address = super().accept()
        connection = Connection(fileno=plain.detach())
        connection.address, connection.strangers = _address(address), self.strangers
        self.strangers.enter(connection)
        return connection, address


class Connection(socket.socket):
    """One that says so when it is closed."""

    address: Address
    strangers: Strangers

    def cut(self) -> None:
        """End it whatever it is doing; the event loop notices and closes it."""
        self.strangers.leave(self)
        with suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it."""
        self.strangers.leave(self)
        super().close()


def listen(host: str, port: int, strangers: Strangers, *, backlog: int = 2048) -> Listener:
    """A listening socket at this address; OSError where that is taken."""
    listener = Listener(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.strangers = strangers
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(backlog)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def make_room(most: int) -> int:
    """Let this process open as many files as it may; how many of them strangers may hold, at most `most`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, min(hard, 65536)) if hard != resource.RLIM_INFINITY else max(soft, 65536)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return max(1, min(most, soft - SPARE_FILES, soft // 2))


def _address(client: Any) -> Address:
    """Host and port; IPv6 adds two more.

    >>> _address(("::1", 40000, 0, 0)), _address(None)
    (('::1', 40000), ('', 0))
    """
    return (str(client[0]), int(client[1])) if client else ("", 0)
