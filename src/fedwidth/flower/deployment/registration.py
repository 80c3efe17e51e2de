"""Which devices a running server knows, and how it learns of those that were enrolled or revoked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedwidth.errors import OptionError
from fedwidth.flower.access.enrolment import pem_of, read_enrolled
from fedwidth.flower.access.signing import OPERATOR_KEY, SIGNATURE, read_key, sign, target_of
from fedwidth.flower.deployment.app_folder import ENROLLED
from fedwidth.flower.deployment.plan import Plan, with_port
from fedwidth.flower.printable import printable

GONE = "unregistered"


def operator_key(folder: Path) -> Path:
    """Where this deployment's operator keeps the key: as $FEDWIDTH_OPERATOR_KEY says, else in the folder."""
    return Path(os.environ.get(OPERATOR_KEY) or folder / "operator" / "key").expanduser()


def states(folder: Path, plan: Plan) -> dict[int, str]:
    """What the server says of each client that it knows: registered, online or offline."""
    with _asking(folder, plan) as (server, messages):
        found = server.ListNodes(messages.ListNodesRequest()).nodes_info
    enrolled = {pem_of(device.public_key): client for client, device in read_enrolled(folder / ENROLLED).items()}
    return {
        enrolled[node.public_key]: node.status for node in found if node.status != GONE and node.public_key in enrolled
    }


def settle(folder: Path, plan: Plan) -> Iterator[str]:
    """Tell the server of every device that is enrolled and of every one that is so no more; a line for each."""
    wanted = {pem_of(device.public_key): client for client, device in read_enrolled(folder / ENROLLED).items()}
    with _asking(folder, plan) as (server, messages):
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


class _Signs:
    """Signs requests as they are sent."""

    def __init__(self, key: Path) -> None:
        try:
            self._key = read_key(key)
        except ValueError as error:
            raise OptionError(str(error)) from None

    def intercept(self, context: Any, call_next: Any) -> Any:
        """Flower's hook around a request."""
        request = context.request
        target = target_of(request.url.path, request.url.query)
        request.headers[SIGNATURE] = sign(self._key, request.method, target, request.read())
        return call_next(context)


@contextmanager
def _asking(folder: Path, plan: Plan) -> Iterator[tuple[Any, Any]]:
    """A connection to the server as its operator, and the messages it takes."""
    import httpx
    from flwr.proto import control_pb2
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    server = ControlHttpClient.from_server_address(
        server_address=with_port(plan.near, plan.port),
        insecure=False,
        root_certificates=(folder / "certificates" / "ca.pem").read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI"), _Signs(operator_key(folder))],
    )
    try:
        yield server, control_pb2
    except httpx.HTTPStatusError as error:
        raise OptionError(
            f"the server answered {error.response.status_code}: {printable(error.response.text)}"
        ) from None
    except httpx.HTTPError as error:
        raise OptionError(f"the server at {with_port(plan.near, plan.port)} does not answer: {error}") from None
    finally:
        server.close()
