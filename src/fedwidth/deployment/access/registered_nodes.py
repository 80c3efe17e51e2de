"""Tells from the headers of a request alone whether a registered node signed it.

Flower checks the same only after it has read the body, of up to 16 MiB; here nothing has been read yet.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from typing import Any

from fedwidth.deployment.versions import check_flower

check_flower()  # what is imported next is Flower's own business, and elsewhere in other versions

from fastapi import HTTPException, Request  # noqa: E402
from flwr.proto.fleet_pb2 import ActivateNodeRequest  # noqa: E402
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER  # noqa: E402
from flwr.superlink.routers.fleet.node_auth import authenticate_node  # noqa: E402


def registered_in(app: Any) -> Callable[[Any], bool] | None:
    """A function that says whether a node in the app's database signed a request; None if it authenticates none."""
    if not app.state.enable_supernode_auth:
        return None

    def is_registered(scope: Any) -> bool:
        request = Request({**scope, "state": {}})
        try:
            key = b64decode(request.headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
            # As if it asked to be let in with the key it shows: that leaves the signature and its time to be checked.
            request.state.protobuf_request = ActivateNodeRequest(public_key=key)
            authenticate_node(request)
        except (HTTPException, KeyError, ValueError):
            return False
        return app.state.linkstate_factory.state().get_node_id_by_public_key(key) is not None

    return is_registered
