"""The page about a run in progress, served to this machine: the page and its data at two addresses, and no files."""

from __future__ import annotations

import errno
import ipaddress
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedwidth.errors import OptionError
from fedwidth.report.page import render
from fedwidth.report.watch import Watch

PORT = 8750
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",  # all else stands in the page itself
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Server(ThreadingHTTPServer):
    """Serves the page about one folder. `url` is where."""

    daemon_threads = False  # a thread that still works when Python ends can abort the process
    allow_reuse_address = True

    def __init__(self, folder: Path, host: str, port: int) -> None:
        self.watch = Watch(folder)
        self._connections: set[socket.socket] = set()
        self._complaint = ""
        self.names = {"localhost", host.lower()}
        if not is_local(host):
            self.names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), Handler)

    @property
    def url(self) -> str:
        """The address of the page."""
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a request in a thread of its own."""
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        self._connections.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """End all connections, idle ones too, and wait for the threads that answered them."""
        for connection in tuple(self._connections):
            with suppress(OSError):  # it may have ended by itself
                connection.shutdown(socket.SHUT_RDWR)
        super().server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that goes away in the middle of an answer is no error; anything else is one line."""
        del request, client_address
        if not isinstance(error := sys.exception(), (ConnectionError, TimeoutError)):
            self.complain(f"{type(error).__name__}: {error}")

    def complain(self, text: str) -> None:
        """Print an error, once however often it happens."""
        if text != self._complaint:
            self._complaint = text
            print(f"error: {' '.join(text.split())}", file=sys.stderr)


class Handler(BaseHTTPRequestHandler):
    """Answers / with the page and /data with its data. No other path is looked at, let alone opened."""

    server: Server
    server_version, sys_version = "fedwidth", ""
    timeout = 30

    def do_GET(self) -> None:
        """Answer a request."""
        path, _, query = self.path.partition("?")
        if not is_meant(self.headers.get("Host", ""), self.server.names):
            # A site that lets its own name point here (DNS rebinding) could otherwise read the page.
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", "this server answers to its own address only\n")
            return
        if path not in ("/", "/data"):
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "there is nothing here\n")
            return
        try:
            state, text, data = self.server.watch.look()
        except Exception as error:  # whatever a folder holds, the next look may succeed
            self.server.complain(f"{type(error).__name__}: {error}")
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", "the folder cannot be read\n")
            return
        if path == "/":
            self._answer(HTTPStatus.OK, "text/html", render(data, live=state))
        elif query == f"after={state}":
            self._answer(HTTPStatus.NO_CONTENT, "application/json", "")
        else:
            self._answer(HTTPStatus.OK, "application/json", f'{{"state":"{state}","data":{text}}}')

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Say what is wrong without repeating any of the request."""
        del message, explain
        self.close_connection = True
        self._answer(HTTPStatus(code), "text/plain", f"{HTTPStatus(code).phrase}\n")

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing about requests."""

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        content = text.encode("utf-8", "replace")
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def make_server(folder: Path, *, host: str = "127.0.0.1", port: int = PORT, expose: bool = False) -> Server:
    """A server that listens but does not answer yet; port 0 takes any that is free."""
    if Path(folder).exists() and not Path(folder).is_dir():
        raise OptionError(f"{folder} is a file; give the folder of a run")
    if not 0 <= port <= 65535:
        raise OptionError(f"--port must be from 0 to 65535, not {port}")
    if not is_local(host) and not expose:
        raise OptionError(f"--host {host} lets other machines read the runs; add --expose if that is wanted")
    try:
        return Server(Path(folder), host, port)
    except (OSError, UnicodeError) as error:
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise OptionError(f"port {port} of {host} is in use; give another with --port") from error
        raise OptionError(f"cannot listen on port {port} of {host}: {error}") from error


def serve(server: Server, announce: Callable[[str], object] = print) -> None:
    """Announce the address and answer until interrupted."""
    try:
        announce(server.url)
        server.serve_forever()
    except KeyboardInterrupt:
        pass  # the way to end it
    finally:
        server.server_close()


def is_local(host: str) -> bool:
    """Whether only this machine can reach the address.

    >>> is_local("127.0.0.1"), is_local("localhost"), is_local("::1"), is_local("0.0.0.0"), is_local("")
    (True, True, True, False, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_meant(header: str, names: set[str]) -> bool:
    """Whether a Host header names this server: one of its names, or a number, which no other site can make its own.

    >>> [is_meant(h, {"localhost"}) for h in ("localhost:8750", "127.0.0.1:1", "[::1]:8750", "evil.example:8750", "")]
    [True, True, True, False, False]
    >>> [is_meant(h, {"localhost"}) for h in ("[::1", "::1", "[localhost]", "[127.0.0.1]", "[::1]8750")]
    [False, False, False, False, False]
    """
    host = header.strip().lower()
    name, colon, rest = host.partition(":")
    rest = colon + rest
    if host.startswith("["):
        name, bracket, rest = host[1:].partition("]")
        if not bracket or ":" not in name:  # brackets are for IPv6 addresses, and come in pairs
            return False
    if rest and not (rest[0] == ":" and rest[1:].isascii() and rest[1:].isdigit()):
        return False
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return name in names
