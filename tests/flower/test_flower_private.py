"""The parts of Flower that are its own business and that fedwidth.flower uses: each test notices a change of one.

Decision record 0016 lists them; those that only show in a deployment are in test_flower_deployment.py.
"""

from __future__ import annotations

import ast
import os
import sys
import warnings
from argparse import Namespace
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

import httpx
import uvicorn
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore import sql_mixin
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.exit import ExitCode
from flwr.supercore.primitives.asymmetric import sign_message
from flwr.superlink import extensions
from flwr.supernode import fleet_http_connection
from flwr.supernode.fleet_http_client import FleetHttpClient
from test_scripts import certify

import fedwidth
from fedwidth.deployment.access import superlink
from fedwidth.deployment.access.guard import ACTIVATE, KEY, Guard
from fedwidth.deployment.access.keys import make_node_key, make_operator_key
from fedwidth.deployment.access.registered_nodes import registered_in
from fedwidth.deployment.node import connection, device, supernode

PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy")
"""What Flower documents for apps."""
PRIVATE = {
    "access/authorisation.py": {"superlink.servicer.control.control_handlers"},
    "access/registered_nodes.py": {
        "proto.fleet_pb2.ActivateNodeRequest",
        "supercore.constant.FLEET_HTTP_PUBLIC_KEY_HEADER",
        "superlink.routers.fleet.node_auth.authenticate_node",
    },
    "access/signing.py": {
        "proto.control_pb2.StartRunRequest",
        "supercore.primitives.asymmetric_ed25519.create_message_to_sign",
    },
    "access/superlink.py": {"supercore.sql_mixin", "superlink.cli.flower_superlink", "superlink.extensions"},
    "folder/registration.py": {
        "proto.control_pb2",
        "supercore.control.ControlHttpClient",
        "supercore.interceptors.RuntimeVersionHttpInterceptor",
    },
    "node/supernode.py": {"supernode.fleet_http_connection"},
    "reply_bounds.py": {
        "proto.message_pb2.PullObjectRequest",
        "proto.message_pb2.PullObjectResponse",
        "proto.runtime_pb2.PullAppMessagesRequest",
        "proto.runtime_pb2.PullAppMessagesResponse",
        "supercore.inflatable.inflatable_utils.ObjectPullError",
        "superlink.grid.http_grid.HttpGrid",
    },
}
"""What each file of the deployment imports of Flower beyond that; the Strategy, and all other rooms, import nothing."""


def private_parts(path: Path) -> set[str]:
    """What a file imports of Flower beyond what it documents."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level and node.module not in PUBLIC:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("flwr.") for name in found if name.partition(".")[0] == "flwr"}


def test_only_the_files_that_are_listed_use_private_parts_of_flower():
    package = Path(fedwidth.__file__).parent
    found = {path.relative_to(package).as_posix(): private_parts(path) for path in package.rglob("*.py")}
    assert {name: parts for name, parts in found.items() if parts} == {
        f"deployment/{name}": parts for name, parts in PRIVATE.items()
    }


@pytest.fixture
def started(tmp_path, monkeypatch):
    """What Flower's SuperLink hands to uvicorn when it is started behind the guard: the app and the options."""
    for module, name in ((uvicorn, "run"), (extensions, "configure_app"), (sql_mixin, "SQLITE_PRAGMAS"), (sys, "argv")):
        monkeypatch.setattr(module, name, getattr(module, name))
    found = {}
    monkeypatch.setattr(superlink, "server_with", lambda _: lambda app, **options: found.update(options, app=app))
    certificates = certify(tmp_path / "c")
    own = Namespace(most_bytes=100, most_reply=200, control="local", most_strangers=50)
    own.operators, own.enrolled = tmp_path / "operators.pub", tmp_path / "enrolled"
    own.audit = tmp_path / "audit.jsonl"
    own.enrolled.mkdir()
    own.operators.write_text(make_operator_key(tmp_path / "operator") + "\n")
    names = {"ca-certfile": "ca.pem", "certfile": "server.pem", "keyfile": "server.key"}
    words = [word for name, file in names.items() for word in (f"--ssl-{name}", str(certificates / file))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Flower's own
        superlink.serve(own, [*words, "--enable-supernode-auth", "--database", str(tmp_path / "link.db")])
    return found


def test_the_guard_is_the_first_to_see_a_request(started):
    """`extensions.configure_app` is called with the app, and `uvicorn.run` with host and port."""
    first = started["app"].user_middleware[0]
    assert first.cls is Guard
    assert first.kwargs["max_body"] == 100
    assert first.kwargs["max_reply"] == 200
    assert first.kwargs["is_registered"] is not None
    assert {"host", "port", "ssl_certfile", "ssl_keyfile"} <= set(started)
    assert set(started) - {"app"} <= set(uvicorn.Config.__init__.__code__.co_varnames)


def test_a_locked_database_is_waited_for(started):
    """Flower sets the pragmas of `sql_mixin.SQLITE_PRAGMAS` on every connection."""
    factory = started["app"].state.linkstate_factory
    with factory.state().session() as session:
        found = session.connection().exec_driver_sql("PRAGMA busy_timeout").scalar()
    assert found == int(superlink.LOCK_MILLISECONDS)


def test_the_guards_paths_and_header_are_flowers(started):
    """Under other names requests would be refused to all, or let in unseen."""
    paths = {"/v1/fleet/pull-object", "/v1/fleet/push-object", "/v1/fleet/push-messages", ACTIVATE, "/health"}
    assert paths <= set(started["app"].openapi()["paths"])
    assert FLEET_HTTP_PUBLIC_KEY_HEADER.lower().encode() == KEY
    others = {path.split("/")[2] for path in started["app"].openapi()["paths"] if path.startswith("/v1/")}
    assert others == {"fleet", "control", "runtime"} | (others & {"responses"})


def headers_of(folder, *, when=None, key="key"):
    """As a SuperNode signs a request."""
    own = load_ssh_private_key((folder / key).read_bytes(), None)
    public = own.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    now = (when or datetime.now(UTC)).isoformat()
    signed = b64encode(sign_message(own, now.encode())).decode()
    pairs = {
        TIMESTAMP_HEADER: now,
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public).decode(),
        FLEET_HTTP_SIGNATURE_HEADER: signed,
    }
    return public, pairs


def scope_of(pairs):
    headers = [(name.lower().encode(), value.encode()) for name, value in pairs.items()]
    return {"type": "http", "method": "POST", "path": "/v1/fleet/push-object", "headers": headers, "query_string": b""}


def test_a_registered_key_is_known_by_its_signature_alone(started, tmp_path):
    """`authenticate_node`, `app.state`, and `get_node_id_by_public_key` of Flower's state."""
    for name in ("key", "other"):
        make_node_key(tmp_path / name)
    is_registered = registered_in(started["app"])
    public, pairs = headers_of(tmp_path)
    assert not is_registered(scope_of(pairs)), "not registered"
    state = started["app"].state.linkstate_factory.state()
    node = state.create_node("owner", "name", public, 30.0)
    assert is_registered(scope_of(pairs))
    _, others = headers_of(tmp_path, key="other")
    assert not is_registered(scope_of(others))
    stolen = others | {FLEET_HTTP_PUBLIC_KEY_HEADER: pairs[FLEET_HTTP_PUBLIC_KEY_HEADER]}
    assert not is_registered(scope_of(stolen)), "its public key, but not its signature"
    old = headers_of(tmp_path, when=datetime.now(UTC) - timedelta(hours=1))[1]
    assert not is_registered(scope_of(old)), "a signature of an hour ago"
    assert not is_registered(scope_of({}))
    assert not is_registered(scope_of({**pairs, FLEET_HTTP_PUBLIC_KEY_HEADER: "no base64!"}))
    state.delete_node("owner", node)
    assert not is_registered(scope_of(pairs)), "unregistered again"


def test_a_supernode_tries_again_after_its_connection_was_cut(monkeypatch):
    """Flower makes its retries by `make_simple_http_retry_invoker`, and asks `should_giveup`."""
    monkeypatch.setattr(
        fleet_http_connection,
        "make_simple_http_retry_invoker",
        fleet_http_connection.make_simple_http_retry_invoker,
    )
    cut = httpx.ReadError("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol")
    assert fleet_http_connection.make_simple_http_retry_invoker().should_giveup(cut), "or this file can go"
    supernode.try_again()
    invoker = fleet_http_connection.make_simple_http_retry_invoker()
    assert not invoker.should_giveup(cut)
    assert invoker.should_giveup(httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"))


def test_each_answer_of_the_server_is_a_beat(monkeypatch):
    """Flower's client sends by `httpx.Client.send`, and SuperNodes say that they are there in at most 30 seconds."""
    ours, theirs = os.pipe()
    monkeypatch.setattr(httpx.Client, "send", httpx.Client.send)
    supernode.write_pulse(theirs)
    client = httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200)))
    client.get("http://here/")
    assert os.read(ours, 10) == b"."
    os.close(ours)
    os.close(theirs)
    with FleetHttpClient.from_server_address("127.0.0.1:9", True, None, interceptors=[]) as fleet:
        assert isinstance(fleet._client, httpx.Client)
    assert fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL * 3 <= device.SILENT_SECONDS


def test_flowers_exit_codes_mean_what_devices_take_them_for():
    names = {
        302: "SUPERNODE_NODE_AUTH_KEY_INVALID",
        303: "SUPERNODE_STARTED_WITHOUT_TLS_BUT_NODE_AUTH_ENABLED",
        304: "SUPERNODE_INVALID_TRUSTED_ENTITIES",
        305: "SUPERNODE_CONNECTION_ERROR",
        600: "COMMON_ADDRESS_INVALID",
        602: "COMMON_TLS_NOT_SUPPORTED",
        603: "COMMON_TLS_ROOT_CERTIFICATES_INCOMPATIBLE",
        604: "COMMON_PATH_INVALID",
        605: "COMMON_TLS_SERVER_CERTIFICATES_INVALID",
        606: "RUNTIME_VERSION_INCOMPATIBLE",
    }
    assert set(connection.FINAL) == set(names) - {305}
    assert {number: getattr(ExitCode, name) for number, name in names.items()} == {number: number for number in names}
