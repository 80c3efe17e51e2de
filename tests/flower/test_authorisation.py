"""Who may ask the server for what: signed requests, enrolled devices, and everyone else."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedwidth.deployment.access import authorisation, signing
from fedwidth.deployment.access.audit_trail import AuditTrail
from fedwidth.deployment.access.authorisation import (
    NODE_KEY,
    WINDOW_SECONDS,
    Authorisation,
    read_operators,
)
from fedwidth.deployment.access.enrolment import Enrolled, pem_of, remove_enrolled, write_enrolled
from fedwidth.deployment.access.keys import make_node_key, make_operator_key
from fedwidth.deployment.access.signing import (
    AHEAD_SECONDS,
    APP_SIGNATURE,
    SIGNATURE,
    START_RUN,
    TOO_EARLY,
    key_of,
    name_of,
    read_key,
    sign,
    sign_app,
)
from fedwidth.deployment.folder import registration
from fedwidth.errors import OptionError
from fedwidth.watching.audit import AuditLog, fingerprint

LIST, ACQUIRE, FLEET = "/v1/control/list-runs", "/v1/runtime/acquire-task", "/v1/fleet/pull-messages"


class Server:
    """The check of requests in front of an application that answers 200 with what it was sent, and a clock."""

    def __init__(self, folder):
        make_operator_key(folder / "key")
        self.operator = read_key(folder / "key")
        (folder / "operators.pub").write_text((folder / "key.pub").read_text())
        self.runtime = Ed25519PrivateKey.generate()
        self.enrolled = folder / "enrolled"
        self.enrolled.mkdir()
        self.folder, self.now, self.apps, self.reached = folder, time.time(), {}, []
        self.make()

    def make(self, **limits):
        self.middleware = Authorisation(
            self.app,
            operators=self.folder / "operators.pub",
            enrolled=self.enrolled,
            runtime=self.runtime.public_key(),
            apps=self.apps,
            clock=lambda: self.now,
            **limits,
        )
        self.now += AHEAD_SECONDS + 0.001  # a request is signed after the start

    def sign(self, key, method, target, body):
        return sign(key, method, target, body, clock=lambda: self.now)

    async def app(self, scope, receive, send):
        self.reached.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def ask(self, path, *, key=None, body=b"", header=None, more=(), method="POST", query=b"", parts=1):
        """The status of a request, and what it was told."""
        if key is not None:
            target = path + (f"?{query.decode()}" if query else "")
            header = self.sign(key, method, target, body)
        headers = [(SIGNATURE.encode(), header.encode())] if header is not None else []
        size = max(1, -(-len(body) // parts))
        chunks = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
        events = [{"type": "http.request", "body": c, "more_body": c is not chunks[-1]} for c in chunks]
        sent = []

        async def receive():
            return events.pop(0) if events else {"type": "http.disconnect"}

        async def send(event):
            sent.append(event)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query,
            "client": ("127.0.0.1", 4000),
            "headers": [*headers, *more],
        }
        asyncio.run(self.middleware(scope, receive, send))
        return sent[0]["status"], sent[1]["body"].decode()


@pytest.fixture
def server(tmp_path):
    return Server(tmp_path)


def test_an_operator_is_heard_once_and_word_for_word(server):
    body = bytes(range(256)) * 40
    assert server.ask(LIST, key=server.operator, body=body, parts=7) == (200, "")
    assert server.reached == [body]


@pytest.mark.parametrize(
    "path",
    [
        LIST,
        "/v1/control/start-run",
        "/v1/control/get-login-details",
        ACQUIRE,
        "/docs",
        "/openapi.json",
        "/",
        "//v1/fleet/x",
    ],
)
def test_whoever_signs_nothing_or_with_another_key_is_refused_unread(server, path):
    stranger = Ed25519PrivateKey.generate()
    for options in ({}, {"key": stranger}, {"header": ""}, {"header": "1 2 3 4"}, {"header": "a b c d e"}):
        status, said = server.ask(path, body=b"x" * 100, **options)
        assert status == 403
        assert "only operators" in said
    assert server.reached == []


def test_two_signatures_are_none(server):
    header = server.sign(server.operator, "POST", LIST, b"")
    status, said = server.ask(LIST, header=header, more=[(SIGNATURE.encode(), header.encode())])
    assert (status, "not signed" in said) == (403, True)


def test_keys_are_good_for_their_own_paths_only(server):
    assert server.ask(ACQUIRE, key=server.runtime)[0] == 200
    assert server.ask(ACQUIRE, key=server.operator)[0] == 403
    assert server.ask(LIST, key=server.runtime)[0] == 403
    assert server.ask("/v1/runtimes", key=server.runtime)[0] == 403


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"path": "/v1/control/stop-run"}, "nobody's who may"),
        ({"method": "GET"}, "nobody's who may"),
        ({"query": b"all=1"}, "nobody's who may"),
        ({"body": b"other"}, "not what was signed"),
    ],
)
def test_a_signature_is_for_one_method_path_query_and_content(server, change, why):
    header = server.sign(server.operator, "POST", LIST, b"body")
    asked = {"path": LIST, "body": b"body", "method": "POST", "query": b""} | change
    status, said = server.ask(asked.pop("path"), header=header, **asked)
    assert (status, why in said) == (403, True), said
    assert server.reached == []


def test_a_request_that_came_before_is_refused_also_by_a_server_that_was_started_again(server):
    header = server.sign(server.operator, "POST", LIST, b"")
    assert server.ask(LIST, header=header)[0] == 200
    status, said = server.ask(LIST, header=header)
    assert (status, "it came before" in said) == (403, True)
    for seconds in (1, WINDOW_SECONDS - 5):
        server.now += seconds
        assert server.ask(LIST, header=header)[0] == 403
    server.make()
    status, said = server.ask(LIST, header=header)
    assert (status, "before this server was started" in said) == (403, True)
    assert len(server.reached) == 1


def test_a_clock_that_is_ahead_does_not_let_a_request_outlive_the_server(server):
    for ahead, status in ((AHEAD_SECONDS + 1, 403), (AHEAD_SECONDS - 0.5, 200)):
        server.now += ahead
        header = server.sign(server.operator, "POST", LIST, b"")
        server.now -= ahead
        assert server.ask(LIST, header=header)[0] == status
    server.make()
    assert server.ask(LIST, header=header)[0] == 403


def test_two_keys_are_none(server):
    # Flower takes the first of two headers, so that the second must not speak for it.
    for name in "ab":
        make_node_key(server.folder / name)
    first, second = ((server.folder / f"{name}.pub").read_text().strip() for name in "ab")
    write_enrolled(server.enrolled, Enrolled(0, first))
    headers = [(NODE_KEY, base64.b64encode(pem_of(key))) for key in (second, first)]
    assert server.ask("/v1/fleet/pull-messages", more=headers[1:])[0] == 200
    assert server.ask("/v1/fleet/pull-messages", more=headers)[0] == 401


def test_devices_are_let_in_again_once_their_folder_is_mended(server):
    make_node_key(server.folder / "a")
    key = (server.folder / "a.pub").read_text().strip()
    write_enrolled(server.enrolled, Enrolled(0, key))
    header = [(NODE_KEY, base64.b64encode(pem_of(key)))]
    file = server.enrolled / "client-0.json"
    os.utime(server.enrolled, (1, 1))
    whole = file.read_text()
    file.write_text("{")
    assert server.ask("/v1/fleet/pull-messages", more=header)[0] == 401
    file.write_text(whole)
    os.utime(server.enrolled, (1, 1))
    assert server.ask("/v1/fleet/pull-messages", more=header)[0] == 200


def test_a_request_that_is_refused_for_its_content_cannot_be_sent_again_with_the_right_one(server):
    header = server.sign(server.operator, "POST", LIST, b"body")
    assert server.ask(LIST, header=header, body=b"other")[0] == 403
    assert "it came before" in server.ask(LIST, header=header, body=b"body")[1]


def test_a_request_counts_for_a_minute(server):
    for seconds, status in ((WINDOW_SECONDS - 1, 200), (WINDOW_SECONDS + 1, 403), (-WINDOW_SECONDS - 1, 403)):
        header = server.sign(server.operator, "POST", LIST, b"")
        server.now += seconds
        assert server.ask(LIST, header=header)[0] == status
        server.now -= seconds if seconds < 0 else 0


def test_what_was_used_is_forgotten_once_it_could_not_be_used_again(server):
    for _ in range(50):
        assert server.ask(LIST, key=server.operator)[0] == 200
        server.now += 10
    assert len(server.middleware._used) <= 4 * WINDOW_SECONDS / 10


def test_an_operator_who_is_taken_out_is_none_at_once_and_another_is_one(server, tmp_path):
    other = make_operator_key(tmp_path / "other", "second")
    assert server.ask(LIST, key=read_key(tmp_path / "other"))[0] == 403
    (tmp_path / "operators.pub").write_text(f"# who may\n{other}\n")
    assert server.ask(LIST, key=read_key(tmp_path / "other"))[0] == 200
    assert server.ask(LIST, key=server.operator)[0] == 403
    (tmp_path / "operators.pub").unlink()
    assert server.ask(LIST, key=read_key(tmp_path / "other"))[0] == 403


def test_too_large_a_request_is_refused_although_it_is_signed(server):
    server.make(max_signed=10)
    assert "more than 10 bytes" in server.ask(LIST, key=server.operator, body=b"x" * 11, parts=3)[1]


def test_a_device_is_let_through_while_it_is_enrolled(server, tmp_path):
    make_node_key(tmp_path / "device", "client-3")
    public = " ".join((tmp_path / "device.pub").read_text().split()[:2])
    said = [(b"flwr-public-key", base64.b64encode(pem_of(public)))]
    assert server.ask(FLEET, more=said)[0] == 401
    write_enrolled(server.enrolled, Enrolled(3, public))
    assert server.ask(FLEET, more=said)[0] == 200
    assert server.ask(FLEET)[0] == 401
    (server.enrolled / "client-4.json").write_text("{")
    assert server.ask(FLEET, more=said)[0] == 401, "a folder that cannot be trusted lets nobody in"
    (server.enrolled / "client-4.json").unlink()
    assert server.ask(FLEET, more=said)[0] == 200
    remove_enrolled(server.enrolled, 3)
    assert server.ask(FLEET, more=said)[0] == 401


def test_a_device_is_told_in_flowers_own_words_that_it_is_not_let_in(server):
    from flwr.supercore.error import ApiErrorCode, FlowerError

    status, said = server.ask("/v1/fleet/activate-node")
    error = FlowerError.from_json(said)
    assert (status, error.code) == (412, ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED)
    assert error.message == "this device is not enrolled"


def test_enrolled_devices_are_not_read_again_for_every_request(server, tmp_path):
    """While the folder is as it was, a file that would lock everybody out is not looked at."""
    make_node_key(tmp_path / "device")
    public = " ".join((tmp_path / "device.pub").read_text().split()[:2])
    write_enrolled(server.enrolled, Enrolled(0, public))
    said = [(b"flwr-public-key", base64.b64encode(pem_of(public)))]
    os.utime(server.enrolled, (1, 1))
    assert server.ask(FLEET, more=said)[0] == 200
    (server.enrolled / "client-0.json").write_text("{")
    assert [server.ask(FLEET, more=said)[0] for _ in range(5)] == [200] * 5
    os.utime(server.enrolled, (2, 2))
    assert server.ask(FLEET, more=said)[0] == 401


def test_health_is_for_everyone_and_websockets_for_nobody(server):
    assert server.ask("/health", method="GET")[0] == 200
    sent = []

    async def send(event):
        sent.append(event)

    asyncio.run(server.middleware({"type": "websocket", "path": "/v1/control/x", "headers": []}, None, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_the_apps_signature_is_what_flowers_nodes_verify(server):
    """By Flower's own check, which a node makes before it runs an app."""
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.proto.fab_pb2 import Fab as FabMessage
    from flwr.supercore.fab import Fab
    from flwr.supernode.start_client_internal import _verify_fab

    from fedwidth.deployment.folder.app_folder import trusted_entities

    content = b"an app"
    body = StartRunRequest(fab=FabMessage(content=content)).SerializeToString()
    more = [(APP_SIGNATURE.encode(), sign_app(server.operator, body).encode())]
    assert server.ask("/v1/control/start-run", key=server.operator, body=body, more=more)[0] == 200
    (found,) = server.apps.values()
    assert list(server.apps) == [hashlib.sha256(content).hexdigest()]
    assert found["valid_license"]
    line = trusted_entities(server.folder / "operators.pub")
    name, key = line.strip().split(": ")
    assert name == name_of(server.operator.public_key())
    assert _verify_fab(Fab("", content, found), {name: key})
    assert not _verify_fab(Fab("", content + b"!", found), {name: key})
    stranger = {name: " ".join(make_operator_key(server.folder / "stranger").split()[:2])}
    assert not _verify_fab(Fab("", content, found), stranger)


def test_flower_keeps_the_signature_with_the_app(monkeypatch):
    from flwr.superlink.servicer.control import control_handlers

    monkeypatch.setattr(control_handlers, "Fab", control_handlers.Fab)
    authorisation.sign_apps_with({"digest": {"name": "signature"}})
    assert control_handlers.Fab("digest", b"", {}).verifications == {"name": "signature"}
    assert control_handlers.Fab("other", b"", {}).verifications == {}
    assert control_handlers.Fab("digest", b"", {"store": "own"}).verifications == {"store": "own"}


def test_every_path_that_flower_serves_is_asked_for_proof(server, monkeypatch):
    """The real application: whatever it serves beside health is refused to a stranger, and nothing is forgotten."""
    monkeypatch.delenv("FLWR_DATABASE", raising=False)
    from flwr.superlink.main import create_app

    paths = {context.path for context in _routes(create_app())}
    assert {LIST, ACQUIRE, FLEET, "/docs", "/openapi.json", "/health"} <= paths
    for path in paths - {"/health"}:
        assert server.ask(path)[0] in (401, 403, 412), path
    assert server.reached == []


def _routes(app):
    from fastapi.routing import iter_route_contexts

    return iter_route_contexts(app.routes)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "holds no operators' keys|must hold Ed25519"),
        ("ssh-rsa AAAA", "holds no operators' keys"),
        ("hello", "holds no operators' keys"),
    ],
)
def test_a_server_without_operators_is_an_error(tmp_path, content, why):
    (tmp_path / "operators.pub").write_text(content)
    with pytest.raises(OptionError, match=why):
        read_operators(tmp_path / "operators.pub")
    with pytest.raises(OptionError, match="holds no operators' keys"):
        read_operators(tmp_path / "none")


def test_a_key_that_cannot_sign_is_named_in_one_line(tmp_path):
    make_node_key(tmp_path / "device")
    for path, why in ((tmp_path / "none", "No such file"), (tmp_path / "device", "must be an Ed25519 key")):
        with pytest.raises(ValueError, match=why):
            key_of("flwr", {"FEDWIDTH_OPERATOR_KEY": str(path)})
    with pytest.raises(ValueError, match="must name the file"):
        key_of("flwr", {})
    with pytest.raises(ValueError, match="is started by the server"):
        key_of("flwr-serverapp", {})


def test_the_audit_log_says_who_commanded_by_which_key_and_who_was_refused(server, tmp_path):
    log = AuditLog(tmp_path / "audit.jsonl")
    server.make(audit=AuditTrail(log))
    assert server.ask(START_RUN, key=server.operator)[0] == 200
    assert server.ask("/v1/control/list-runs", key=server.operator)[0] == 200
    for _ in range(3):  # a stranger is named once
        assert server.ask(START_RUN, key=Ed25519PrivateKey.generate())[0] == 403
        server.ask("/v1/fleet/activate-node", more=[(b"flwr-public-key", b"nobody")])
    found = list(log.lines())
    assert [line["event"] for line in found] == ["run started", "refused", "refused"]
    assert found[0]["by"] == fingerprint((tmp_path / "key.pub").read_text())
    assert found[1]["command"] == START_RUN
    assert found[2]["key"].startswith("SHA256:")
    assert log.check() == 3


@pytest.mark.parametrize(("why", "asked"), [(TOO_EARLY, 2), ("its signature is nobody's who may", 1)])
def test_an_operator_who_comes_too_early_signs_once_more(tmp_path, monkeypatch, why, asked):
    """A server that has just started cannot know what the one before it took."""
    make_operator_key(tmp_path / "key")
    slept, seen = [], []
    monkeypatch.setattr(signing.time, "sleep", slept.append)
    context = SimpleNamespace(request=httpx.Request("POST", f"https://server{LIST}", content=b"all"))

    def call_next(given):
        seen.append(given.request.headers[SIGNATURE])
        return httpx.Response(200) if len(seen) == 2 else httpx.Response(403, json={"detail": f"only operators: {why}"})

    found = registration._SigningInterceptor(tmp_path / "key").intercept(context, call_next)
    assert len(seen) == len(set(seen)) == asked
    assert found.status_code == (200 if asked == 2 else 403)
    assert slept == [AHEAD_SECONDS] * (asked - 1)
