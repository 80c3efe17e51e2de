"""Whether a registered node signed a request, told from its headers alone.

Flower asks the same once it has read the body, of up to 16 MiB; here nothing has been read yet.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from typing import Any

from fedwidth.flower.versions import check_flower

check_flower()  # what is imported next is Flower's own business, and elsewhere in other versions

from fastapi import HTTPException, Request  # noqa: E402
from flwr.proto.fleet_pb2 import ActivateNodeRequest  # noqa: E402
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER  # noqa: E402
from flwr.superlink.routers.fleet.node_auth import authenticate_node  # noqa: E402


def enrolled_in(app: Any) -> Callable[[Any], bool] | None:
    """The question, asked of an app's database; None where the app authenticates no nodes."""
    if not app.state.enable_supernode_auth:
        return None

    def is_enrolled(scope: Any) -> bool:
        request = Request({**scope, "state": {}})
        try:
            key = b64decode(request.headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
            # As if it asked to be let in with the key it shows: that leaves the signature and its time to be checked.
            request.state.protobuf_request = ActivateNodeRequest(public_key=key)
            authenticate_node(request)
        except (HTTPException, KeyError, ValueError):
            return False
        return app.state.linkstate_factory.state().get_node_id_by_public_key(key) is not None

    return is_enrolled
