"""Registers the enrolled devices with a running SuperLink, unregisters the revoked ones, and lists those it knows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedwidth.deployment.access.enrolment import pem_of, read_enrolled
from fedwidth.deployment.access.signing import OPERATOR_KEY, SIGNATURE, ask, read_key, sign, target_of
from fedwidth.deployment.folder.app_folder import ENROLLED
from fedwidth.deployment.folder.setup import Setup, with_port
from fedwidth.errors import OptionError
from fedwidth.printable import printable

GONE = "unregistered"
"""What Flower says of a node that it no longer knows."""


def operator_key(folder: Path) -> Path:
    """The file of the operator's key: the one that $FEDWIDTH_OPERATOR_KEY names, else the one in the deployment."""
    return Path(os.environ.get(OPERATOR_KEY) or folder / "operator" / "key").expanduser()


def statuses(folder: Path, setup: Setup) -> dict[int, str]:
    """The status of each client that the server knows: registered, online or offline."""
    with _control_client(folder, setup) as (server, messages):
        found = server.ListNodes(messages.ListNodesRequest()).nodes_info
    enrolled = {pem_of(device.public_key): client for client, device in read_enrolled(folder / ENROLLED).items()}
    return {
        enrolled[node.public_key]: node.status for node in found if node.status != GONE and node.public_key in enrolled
    }


def synchronise(folder: Path, setup: Setup) -> Iterator[str]:
    """Register with the server what is enrolled, and unregister what is not; yields a line for each such device."""
    wanted = {pem_of(device.public_key): client for client, device in read_enrolled(folder / ENROLLED).items()}
    with _control_client(folder, setup) as (server, messages):
        nodes = [n for n in server.ListNodes(messages.ListNodesRequest()).nodes_info if n.status != GONE]
        for node in nodes:
            if node.public_key not in wanted:
                server.UnregisterNode(messages.UnregisterNodeRequest(node_id=node.node_id))
                yield f"the server no longer knows {printable(node.name)}"
        known = {node.public_key for node in nodes}
        for key, client in wanted.items():
            if key not in known:
                server.RegisterNode(messages.RegisterNodeRequest(public_key=key, name=f"client-{client}"))
                yield f"the server knows client-{client}"


class _SigningInterceptor:
    """Signs requests as Flower's client sends them."""

    def __init__(self, key: Path) -> None:
        try:
            self._key = read_key(key)
        except ValueError as error:
            raise OptionError(str(error)) from None

    def intercept(self, context: Any, call_next: Any) -> Any:
        """Sign a request; Flower calls this around each."""
        return ask(lambda: self._send(context, call_next))

    def _send(self, context: Any, call_next: Any) -> Any:
        request = context.request
        target = target_of(request.url.path, request.url.query)
        request.headers[SIGNATURE] = sign(self._key, request.method, target, request.read())
        return call_next(context)


@contextmanager
def _control_client(folder: Path, setup: Setup) -> Iterator[tuple[Any, Any]]:
    """Flower's client of the server's control API, as its operator, and the module with its messages."""
    import httpx
    from flwr.proto import control_pb2
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    server = ControlHttpClient.from_server_address(
        server_address=with_port(setup.local_address, setup.port),
        insecure=False,
        root_certificates=(folder / "certificates" / "ca.pem").read_bytes(),
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="flwr CLI"),
            _SigningInterceptor(operator_key(folder)),
        ],
    )
    try:
        yield server, control_pb2
    except httpx.HTTPStatusError as error:
        raise OptionError(
            f"the server answered {error.response.status_code}: {printable(error.response.text)}"
        ) from None
    except httpx.HTTPError as error:
        raise OptionError(
            f"the server at {with_port(setup.local_address, setup.port)} does not answer: {error}"
        ) from None
    finally:
        server.close()
