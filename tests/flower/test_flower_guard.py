"""Strangers before the server's door: how many, for how long, and what they may send."""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

import uvicorn
from loopback import free_ports, wait_until
from test_flower_wire import call_guard, inner
from test_scripts import certify

from fedwidth.deployment.access.connections import Strangers, listen
from fedwidth.deployment.access.guard import BODY_RATE, BODY_SECONDS, KEY, MIN_REPLY, Guard
from fedwidth.deployment.access.superlink import alone, descendants, end

ENROLLED = {"flwr-public-key": "mine"}


async def read_all(_scope, receive, send):
    """An app that answers once it has the whole body."""
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            return
        if not event.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@contextmanager
def guarded(tmp_path, *, body_seconds=BODY_SECONDS, body_rate=BODY_RATE, **limits):
    """A real server over TLS behind the guard, in which the key `mine` is enrolled; its port and its strangers."""
    place, port = certify(tmp_path / "c"), free_ports(1)
    strangers = Strangers(**limits)
    app = Guard(
        read_all,
        strangers=strangers,
        body_seconds=body_seconds,
        body_rate=body_rate,
        is_registered=lambda scope: dict(scope["headers"]).get(KEY) == b"mine",
    )
    listener = listen("127.0.0.1", port, strangers)
    config = uvicorn.Config(
        app,
        loop="asyncio",
        lifespan="off",
        ws="none",
        log_level="error",
        ssl_certfile=str(place / "server.pem"),
        ssl_keyfile=str(place / "server.key"),
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_until(lambda: server.started, 120)
        yield SimpleNamespace(port=port, strangers=strangers, authority=place / "ca.pem")
    finally:
        server.should_exit = server.force_exit = True
        thread.join(20)
        listener.close()


def ask(made, headers=ENROLLED, *, path="/v1/fleet/pull-messages", body=b"x" * 100) -> int:
    """The status of a request over a connection of its own."""
    context = ssl.create_default_context(cafile=made.authority)
    connection = http.client.HTTPSConnection("127.0.0.1", made.port, context=context, timeout=20)
    try:
        connection.request("POST", path, body, dict(headers))
        return connection.getresponse().status
    finally:
        connection.close()


def stalled(made, stage: str) -> socket.socket:
    """A connection that stops before TLS, within the headers, or within the body of one who is enrolled."""
    plain = socket.create_connection(("127.0.0.1", made.port), timeout=20)
    if stage == "handshake":
        return plain
    context = ssl.create_default_context(cafile=made.authority)
    with ExitStack() as left:
        left.callback(plain.close)
        secure = context.wrap_socket(plain, server_hostname="127.0.0.1")
        left.callback(secure.close)
        secure.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n")
        if stage == "body":
            secure.sendall(b"flwr-public-key: mine\r\n\r\n" + b"x" * 10)
        left.pop_all()
    return secure


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has ended it."""
    connection.settimeout(0.02)
    try:
        return connection.recv(4096) == b""
    except (TimeoutError, ssl.SSLWantReadError):
        return False
    except OSError:
        return True


@pytest.mark.parametrize("stage", ["handshake", "headers", "body"])
def test_a_connection_that_stalls_is_closed(tmp_path, stage):
    with guarded(tmp_path, seconds=2.0, body_seconds=2.0) as made:
        begun = time.monotonic()
        with stalled(made, stage) as connection:
            wait_until(lambda: is_closed(connection), 60)
            assert time.monotonic() - begun > 1.9, "not before its time"
            wait_until(lambda: len(made.strangers) == 0, 60)


def test_devices_get_in_while_strangers_hold_all_the_connections_there_are(tmp_path):
    """150 stall before TLS, 150 within the headers; 40 of one address may, and none is closed for its age here."""
    with guarded(tmp_path, max_strangers=60, max_per_address=40, seconds=600.0) as made:
        held = []
        for number in range(300):
            with suppress(OSError):  # to let it in, an older one is closed, which may be this thread's
                held.append(stalled(made, "headers" if number % 2 else "handshake"))
            if number % 50 == 49:
                assert ask(made) == 200
        wait_until(lambda: sum(map(is_closed, held)) >= len(held) - 40, 120)
        assert len(made.strangers) <= 40
        assert ask(made) == 200
        for connection in held:
            connection.close()


def test_a_slow_upload_that_goes_on_is_waited_for(tmp_path):
    """Two seconds, and another for every 16 bytes: a thousand bytes in three seconds, or in sixty, are fast enough."""
    with (
        guarded(tmp_path, seconds=2.0, body_seconds=2.0, body_rate=16) as made,
        stalled(made, "body") as connection,
    ):
        for _ in range(6):
            time.sleep(0.5)
            connection.sendall(b"x" * 165)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_of_strangers_nothing_is_read(tmp_path):
    """401 comes although the body of 16 MiB does not; who asks to be let in is passed on to Flower."""
    with guarded(tmp_path) as made:
        context = ssl.create_default_context(cafile=made.authority)
        with (
            socket.create_connection(("127.0.0.1", made.port), timeout=20) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            secure.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Length: 16000000\r\n\r\n")
            assert secure.recv(100).startswith(b"HTTP/1.1 401")
        assert ask(made, {}) == 401
        assert ask(made, {}, path="/v1/fleet/activate-node") == 200
        assert ask(made, {}, path="/v1/fleet/activate-node", body=b"x" * 5000) == 401
        assert ask(made) == 200


def test_one_that_is_vouched_for_is_no_stranger_and_its_time_does_not_run_out(tmp_path):
    with guarded(tmp_path, max_strangers=1, seconds=2.0) as made:
        context = ssl.create_default_context(cafile=made.authority)
        connection = http.client.HTTPSConnection("127.0.0.1", made.port, context=context, timeout=20)
        for _ in range(2):
            connection.request("POST", "/v1/fleet/pull-messages", b"x", ENROLLED)
            assert connection.getresponse().read() == b"ok"
            with stalled(made, "handshake"):
                time.sleep(2.5)
        connection.close()


def test_an_introduction_is_small_from_the_first_byte_on():
    """A node that was sent 1,000 bytes may answer with 1 MiB and 8,000; before anything was sent, with --most-reply."""

    async def gives(_scope, receive, send):
        await receive()
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"x" * 1000})

    guard = Guard(inner, max_reply=3 * MIN_REPLY)
    part = {"path": "/v1/fleet/push-object", "length": MIN_REPLY // 2}
    message = {"path": "/v1/fleet/push-messages", "length": 10, "body": b"x" * 10}
    guard.app = gives
    assert call_guard(guard, key=b"one", path="/v1/fleet/pull-object", length=0) == 200
    guard.app = inner
    assert call_guard(guard, key=b"one", **message) == 200
    big = part | {"body": b"x" * (MIN_REPLY // 2)}
    assert [call_guard(guard, key=b"one", **big) for _ in range(3)] == [200, 200, 413]
    assert call_guard(guard, key=b"one", path="/v1/fleet/push-object", length=8000, body=b"x" * 8000) == 200
    assert call_guard(guard, key=b"one", path="/v1/fleet/push-object", length=1, body=b"x") == 413
    assert call_guard(guard, key=b"two", **message) == 200
    assert [call_guard(guard, key=b"two", **big) for _ in range(7)] == [200] * 6 + [413], "after a restart"


def test_strangers_leave_files_for_others():
    """In a process of its own, because a limit that was lowered stays so."""
    code = (
        "from resource import RLIMIT_NOFILE, getrlimit, setrlimit\n"
        "from fedwidth.deployment.access.connections import raise_file_limit\n"
        "for limits in ((1024, 4096), (1024, 1024)):\n"
        "    setrlimit(RLIMIT_NOFILE, limits)\n"
        "    print(raise_file_limit(1024), *getrlimit(RLIMIT_NOFILE))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "1024 4096 4096\n512 1024 1024\n", done.stderr


def test_one_database_has_one_server(tmp_path):
    from fedwidth.errors import OptionError

    with alone(str(tmp_path / "state" / "link.db")):
        with (
            pytest.raises(OptionError, match=r"^another SuperLink uses .*link.db; end that one first$"),
            alone(str(tmp_path / "state" / "link.db")),
        ):
            pass
        with alone(":flwr-in-memory:"):
            pass
    with alone(str(tmp_path / "state" / "link.db")):
        pass


def test_the_oldest_goes_first():
    closed = []

    class Connection:
        def __init__(self, strangers, host, port):
            self.address, self.strangers = (host, port), strangers

        def cut(self):
            closed.append(self.address)
            self.strangers.leave(self)

    async def come():
        strangers = Strangers(max_strangers=3, max_per_address=2, seconds=60)
        for host, port in (("a", 1), ("a", 2), ("b", 1), ("a", 3), ("c", 1)):
            strangers.enter(Connection(strangers, host, port))
        strangers.vouch_for(("b", 1))
        strangers.enter(Connection(strangers, "c", 2))

    asyncio.run(come())
    assert closed == [("a", 1), ("a", 2)]


def test_what_a_server_has_started_ends_with_it():
    """Also what was started by another one that is gone, and what does not listen to SIGTERM."""
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {deaf!r}])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as first:
        first.stdout.readline()
        own = {process for process in descendants(os.getpid()) if process in {first.pid, *descendants(first.pid)}}
        assert len(own) == 2
        first.kill()
        first.wait()
        (orphan,) = own - {first.pid}
        end({orphan})
        wait_until(lambda: not is_running(orphan), 60)


def is_running(process: int) -> bool:
    """An orphan that has ended may wait for whoever is to notice it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
