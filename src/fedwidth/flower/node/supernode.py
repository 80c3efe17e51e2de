"""A SuperNode that comes back, or ends: `python supernode.py …`, what `device.py` starts. Copied into nodes' folders.

Flower's own gives up on any error that mentions SSL, as every connection does that a proxy cuts while the server behind
it restarts. Then its main thread ends, and the thread of its HTTP server keeps the process alive: connected to nothing,
for good. This one takes a cut connection for what it is and tries again; where its main thread ends, so does the
process; and each answer of the server is a byte to whoever watches over it, by the descriptor in FEDWIDTH_PULSE.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

PULSE = "FEDWIDTH_PULSE"


def is_cut(error: Exception) -> bool:
    """Whether a connection was lost, and not refused for its certificate.

    >>> import httpx
    >>> is_cut(httpx.ReadError("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol"))
    True
    >>> is_cut(httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: expired"))
    False
    """
    import httpx

    return isinstance(error, httpx.TransportError) and "certificate" not in str(error).lower()


def try_again() -> None:
    """Let SuperNodes of this process try again after a connection was cut."""
    from flwr.supernode import fleet_http_connection as connection

    make = connection.make_simple_http_retry_invoker

    def patient() -> Any:
        invoker = make()
        gives_up = invoker.should_giveup
        invoker.should_giveup = lambda error: not is_cut(error) and gives_up(error)
        return invoker

    connection.make_simple_http_retry_invoker = patient


def beat(pulse: int) -> None:
    """Write a byte whenever the server has answered."""
    import httpx

    send = httpx.Client.send

    def heard(self: httpx.Client, *words: Any, **more: Any) -> httpx.Response:
        response = send(self, *words, **more)
        with suppress(OSError):
            os.write(pulse, b".")
        return response

    httpx.Client.send = heard  # type: ignore[method-assign]


def main() -> None:
    """Run until the connection cannot be had."""
    from flwr.supernode.cli import flower_supernode

    try_again()
    if PULSE in os.environ:
        beat(int(os.environ.pop(PULSE)))
    sys.argv[0] = "flower-supernode"
    status: Any = 1  # that it returns at all means that it has given up
    try:
        flower_supernode()
    except SystemExit as end:
        status = end.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else int(status is not None))


if __name__ == "__main__":
    main()
