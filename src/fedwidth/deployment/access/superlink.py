"""Flower's SuperLink behind a guard.

    python -m fedwidth.deployment.access.superlink [--most-bytes N] [--most-reply N] [--control any] …

The rest of the command line is `flower-superlink`'s own. Flower serves nodes, operators and apps on one port, and
reads a request before it knows who sent it. The guard

- refuses a request with a body above `--most-bytes` unread, with status 413 (16 MiB; an honest node's have 5 MiB);
- refuses a request unread if no registered node signed its headers, unless a node asks to be let in by it;
- closes connections of strangers that are too many or too slow (`connections.py`, `--most-strangers`), and connections
  on which a body stops coming;
- refuses what a reply has beyond `--most-reply` bytes (128 MiB; set it to a little more than the model), or beyond 1
  MiB and eight times what the node was sent, introductions included: Flower holds up to three times as much in memory,
  and gigabytes in its database lock it for all nodes;
- waits for a locked database longer than Flower's 5 seconds, after which SuperExec would give up for good and no run
  would start any more;
- lets only processes of this machine register nodes, start runs and fetch results (`--control any` lifts this).

Behind the guard, `authorisation.py` checks who asks: operators and the server's own processes sign their requests, and
a device must be enrolled.

SIGTERM ends it within seconds, whoever is connected. A second SuperLink on the same database is refused.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from fedwidth.deployment.access.audit_trail import AuditTrail, running
from fedwidth.deployment.access.connections import (
    MAX_PER_ADDRESS,
    MAX_STRANGERS,
    Strangers,
    listen,
    raise_file_limit,
)
from fedwidth.deployment.access.guard import MAX_BODY, MAX_REPLY, Guard
from fedwidth.deployment.access.required_signatures import require_signatures
from fedwidth.deployment.folder.app_folder import ENROLLED, OPERATORS
from fedwidth.deployment.versions import check_flower
from fedwidth.errors import OptionError
from fedwidth.files import locked
from fedwidth.watching.audit import NAME as AUDIT
from fedwidth.watching.audit import AuditLog

LOCK_MILLISECONDS = "25000"
"""How long a locked database is waited for: less than the 30 seconds after which Flower's own clients give up."""
GRACE_SECONDS, APP_SECONDS, END_SECONDS = 3, 3.0, 12.0
"""Once the server is asked to end: how long requests have, how long its apps have, and when it ends in any case."""


def server_with(strangers: Strangers) -> Callable[..., None]:
    """A function in place of `uvicorn.run`, which Flower calls: it counts connections, and SIGTERM ends it in time."""
    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            """End the process in any case: it would wait for ever for threads that stream a run's log to somebody."""
            super().handle_exit(sig, frame)
            last = threading.Timer(END_SECONDS, os._exit, args=[128 + sig])
            last.daemon = True
            last.start()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """End the ServerApps, too: waiting for a server that is gone, one would hold its run's folder for good."""
            apps = descendants(os.getpid())
            await super().shutdown(sockets)
            end(apps)

    def run(app: Any, *, host: str, port: int, **options: Any) -> None:
        own = {"loop": "asyncio", "ws": "none", "timeout_graceful_shutdown": GRACE_SECONDS}
        config = uvicorn.Config(app, host=host, port=port, **{**options, **own})
        try:
            listener = listen(host, port, strangers)
        except OSError as error:
            raise SystemExit(f"error: cannot listen at {host}:{port}: {error.strerror or error}") from None
        with listener:
            Server(config).run(sockets=[listener])

    return run


def descendants(process: int) -> set[int]:
    """The processes that a process has started, and those that these have started, where the system has /proc."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            parents[int(path.parent.name)] = int(path.read_text().rsplit(")", 1)[1].split()[1])
    found: set[int] = set()
    new = {process}
    while new := {child for child, parent in parents.items() if parent in new} - found:
        found |= new
    return found


def end(processes: set[int]) -> None:
    """Ask processes to end, and kill those that have not ended after a while."""
    for number, seconds in ((signal.SIGTERM, APP_SECONDS), (signal.SIGKILL, 0.0)):
        deadline = time.monotonic() + seconds
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, number)
        while (processes := {one for one in processes if _exists(one)}) and time.monotonic() < deadline:
            time.sleep(0.1)


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def alone(database: str) -> Iterator[None]:
    """Hold the lock of a database for as long as the block lasts; `OptionError` where another SuperLink holds it."""
    if not database or database.startswith(":"):
        yield
        return
    path = Path(database)
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            held.enter_context(locked(path.with_name(path.name + ".lock")))
        except BlockingIOError:
            raise OptionError(f"another SuperLink uses {database}; end that one first") from None
        yield


def main() -> None:
    """Start the SuperLink behind the guard."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--most-bytes", type=int, default=MAX_BODY)
    parser.add_argument("--most-reply", type=int, default=MAX_REPLY)
    parser.add_argument("--control", choices=("local", "any"), default="local")
    parser.add_argument("--operators", type=Path, default=Path(OPERATORS))
    parser.add_argument("--enrolled", type=Path, default=Path(ENROLLED))
    parser.add_argument("--most-strangers", type=int, default=MAX_STRANGERS)
    parser.add_argument("--database", default="")
    parser.add_argument("--audit", type=Path, default=Path(AUDIT))
    own, rest = parser.parse_known_args()
    try:
        check_flower()
        with alone(own.database), running(AuditLog(own.audit)):
            serve(own, [*rest, *(["--database", own.database] if own.database else [])])
    except OptionError as error:
        raise SystemExit(f"error: {error}") from None


def serve(own: argparse.Namespace, rest: list[str]) -> None:
    """Run Flower's SuperLink with the rest of the command line, behind the guard."""
    import uvicorn
    from flwr.supercore import sql_mixin
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink

    from fedwidth.deployment.access.registered_nodes import registered_in

    configure = extensions.configure_app
    most = raise_file_limit(own.most_strangers)
    strangers = Strangers(max_strangers=most, max_per_address=min(MAX_PER_ADDRESS, max(1, most // 2)))
    add_authorisation = require_signatures(own.operators, own.enrolled, AuditTrail(AuditLog(own.audit)))

    def guarded(app: Any) -> None:
        configure(app)
        add_authorisation(app)
        app.add_middleware(
            Guard,
            max_body=own.most_bytes,
            max_reply=own.most_reply,
            local_control=own.control == "local",
            strangers=strangers,
            is_registered=registered_in(app),
        )

    extensions.configure_app = guarded
    uvicorn.run = server_with(strangers)
    sql_mixin.SQLITE_PRAGMAS = (*sql_mixin.SQLITE_PRAGMAS, ("busy_timeout", LOCK_MILLISECONDS))
    sys.argv = ["flower-superlink", *rest]
    flower_superlink()


if __name__ == "__main__":
    main()
