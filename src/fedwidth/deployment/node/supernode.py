"""Flower's SuperNode, which here either connects again or ends: `python supernode.py …`, which `device.py` starts.

By itself a SuperNode gives up on every error that mentions SSL, and a proxy that cuts a connection while the server
behind it restarts causes such an error. Then its main thread ends, but the thread of its HTTP server keeps the process
alive, connected to nothing, for ever. Here a SuperNode whose connection was cut tries again; where its main thread
ends, so does the process; and whenever the server has answered, it writes a byte into the pipe that FEDWIDTH_PULSE
names, for `device.py`. The processes that it starts are forks (`forks.py`). This file is copied into the devices'
folders.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

if __package__:
    from fedwidth.deployment.node.forks import SUPERNODE, load_programs, start_fork_server
else:  # in a device's folder, where importing fedwidth would bring in PyTorch
    from forks import SUPERNODE, load_programs, start_fork_server  # type: ignore[import-not-found,no-redef]

PULSE = "FEDWIDTH_PULSE"
"""The environment variable that holds the number of the pipe's file descriptor."""


def is_cut(error: Exception) -> bool:
    """Whether an error means that a connection was lost, and not that the server's certificate was refused.

    >>> import httpx
    >>> is_cut(httpx.ReadError("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol"))
    True
    >>> is_cut(httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: expired"))
    False
    """
    import httpx

    return isinstance(error, httpx.TransportError) and "certificate" not in str(error).lower()


def try_again() -> None:
    """Have the SuperNode of this process try again after its connection was cut."""
    from flwr.supernode import fleet_http_connection as connection

    make = connection.make_simple_http_retry_invoker

    def make_patient() -> Any:
        invoker = make()
        gives_up = invoker.should_giveup
        invoker.should_giveup = lambda error: not is_cut(error) and gives_up(error)
        return invoker

    connection.make_simple_http_retry_invoker = make_patient


def write_pulse(pulse: int) -> None:
    """Have this process write a byte to a file descriptor whenever the server has answered."""
    import httpx

    send = httpx.Client.send

    def send_and_write(self: httpx.Client, *arguments: Any, **options: Any) -> httpx.Response:
        response = send(self, *arguments, **options)
        with suppress(OSError):
            os.write(pulse, b".")
        return response

    httpx.Client.send = send_and_write  # type: ignore[method-assign]


def main() -> None:
    """Run the SuperNode until it cannot connect any more, and what it starts in forks of this process."""
    programs = load_programs()
    sys.argv = start_fork_server(programs)
    program, pulse = programs[sys.argv[0]], int(os.environ.pop(PULSE, -1))
    if sys.argv[0] != SUPERNODE:
        if pulse >= 0:
            os.close(pulse)
        sys.path.pop(0)  # the device's folder, which has names that an app may have too
        raise SystemExit(program())
    try_again()
    if pulse >= 0:
        write_pulse(pulse)
    status: Any = 1  # that it returns at all means that it has given up
    try:
        program()
    except SystemExit as end:
        status = end.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else int(status is not None))


if __name__ == "__main__":
    main()
