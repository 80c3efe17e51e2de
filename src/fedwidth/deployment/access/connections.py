"""Limits the connections of strangers: those on which no request with a known sender has come yet.

Between a new connection and a request whose sender is known lie the TLS handshake and the headers, and whoever reaches
the port can stop there. So strangers' connections are counted from the moment they are accepted. Beyond
`max_per_address` of one address, or `max_strangers` in all, the oldest is closed to let the newest in: a device is done
with handshake and headers within a fraction of a second, and a connection that stalls is not. One that lasts longer
than `seconds` is closed, too.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

MAX_STRANGERS, MAX_PER_ADDRESS, MAX_SECONDS = 1024, 256, 10.0
SPARE_FILES = 256
"""File descriptors that are kept for everything but strangers: known devices, the database, the log."""

Address = tuple[str, int]
"""Host and port of the other end of a connection."""


class Strangers:
    """Counts the connections of strangers and closes those that are too many or too slow."""

    def __init__(
        self,
        *,
        max_strangers: int = MAX_STRANGERS,
        max_per_address: int = MAX_PER_ADDRESS,
        seconds: float = MAX_SECONDS,
    ) -> None:
        self.max_strangers, self.max_per_address, self.seconds = max_strangers, max_per_address, seconds
        self._strangers: dict[Address, Connection] = {}
        """The connections of strangers, oldest first."""
        self._all: dict[Address, Connection] = {}
        """All connections, those of known devices included."""
        self._serving: set[Address] = set()
        """The connections on which a request is being answered."""

    def __len__(self) -> int:
        return len(self._strangers)

    def enter(self, connection: Connection) -> None:
        """Count a new connection, and close the oldest where that makes too many."""
        host = connection.address[0]
        same = [address for address in self._strangers if address[0] == host]
        if len(same) >= self.max_per_address:
            self._strangers[same[0]].cut()
        elif len(self._strangers) >= self.max_strangers:
            self._strangers[next(iter(self._strangers))].cut()
        self._strangers[connection.address] = self._all[connection.address] = connection
        self._watch(connection)

    def leave(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        for connections in (self._strangers, self._all):
            if connections.get(connection.address) is connection:
                del connections[connection.address]

    def cut(self, client: Any) -> None:
        """Close a connection, a stranger's or a known device's."""
        if (connection := self._all.get(_address(client))) is not None:
            connection.cut()

    def vouch_for(self, client: Any) -> None:
        """Take down that the sender of a connection's requests is known: it is no stranger's from now on."""
        self._strangers.pop(_address(client), None)

    @contextmanager
    def serving(self, client: Any) -> Iterator[None]:
        """Stop a connection's clock while one of its requests is answered: bodies have limits of their own."""
        address = _address(client)
        self._serving.add(address)
        try:
            yield
        finally:
            self._serving.discard(address)

    def _watch(self, connection: Connection) -> None:
        asyncio.get_running_loop().call_later(self.seconds, self._expire, connection)

    def _expire(self, connection: Connection) -> None:
        if self._strangers.get(connection.address) is not connection:
            return
        if connection.address in self._serving:
            self._watch(connection)
        else:
            connection.cut()


class Listener(socket.socket):
    """A listening socket that counts its connections from their first moment, before TLS has begun.

    The event loop must be asyncio's own, which accepts connections by this class's `accept`.
    """

    strangers: Strangers

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept the next connection, and count it."""
        plain, address = super().accept()
        connection = Connection(fileno=plain.detach())
        connection.address, connection.strangers = _address(address), self.strangers
        self.strangers.enter(connection)
        return connection, address


class Connection(socket.socket):
    """An accepted connection, which is no longer counted once it is closed."""

    address: Address
    strangers: Strangers

    def cut(self) -> None:
        """End the connection whatever it is doing; the event loop notices and closes it."""
        self.strangers.leave(self)
        with suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection, and count it no longer."""
        self.strangers.leave(self)
        super().close()


def listen(host: str, port: int, strangers: Strangers, *, backlog: int = 2048) -> Listener:
    """A listening socket at this address; `OSError` where the address is taken."""
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


def raise_file_limit(max_strangers: int) -> int:
    """Let this process open as many files as the system allows.

    Returns how many of them strangers may hold, at most `max_strangers`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, min(hard, 65536)) if hard != resource.RLIM_INFINITY else max(soft, 65536)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return max(1, min(max_strangers, soft - SPARE_FILES, soft // 2))


def _address(client: Any) -> Address:
    """The host and the port of an address; addresses of IPv6 have two parts more.

    >>> _address(("::1", 40000, 0, 0)), _address(None)
    (('::1', 40000), ('', 0))
    """
    return (str(client[0]), int(client[1])) if client else ("", 0)
