"""Who may ask the server for what: signed requests, enrolled devices, and everyone else."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import time

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedwidth.errors import OptionError
from fedwidth.flower.access import operators as module
from fedwidth.flower.access.enrolment import Enrolled, pem_of, remove_enrolled, write_enrolled
from fedwidth.flower.access.keys import make_node_key, make_operator_key
from fedwidth.flower.access.operators import AHEAD_SECONDS, NODE_KEY, WINDOW_SECONDS, Operators, read_operators
from fedwidth.flower.access.signing import APP_SIGNATURE, SIGNATURE, key_of, name_of, read_key, sign, sign_app

LIST, ACQUIRE, FLEET = "/v1/control/list-runs", "/v1/runtime/acquire-task", "/v1/fleet/pull-messages"


class Place:
    """The middleware in front of an application that answers 200 with what it was sent."""

    def __init__(self, folder):
        make_operator_key(folder / "key")
        self.operator = read_key(folder / "key")
        (folder / "operators.pub").write_text((folder / "key.pub").read_text())
        self.runtime = Ed25519PrivateKey.generate()
        self.enrolled = folder / "enrolled"
        self.enrolled.mkdir()
        self.folder, self.now, self.apps, self.reached = folder, time.time(), {}, []
        self.make()

    def make(self):
        self.server = Operators(
            self.app,
            operators=self.folder / "operators.pub",
            enrolled=self.enrolled,
            runtime=self.runtime.public_key(),
            apps=self.apps,
            clock=lambda: self.now,
        )
        self.now += AHEAD_SECONDS + 0.001  # a request is signed after the start

    async def app(self, scope, receive, send):
        self.reached.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def ask(self, path, *, key=None, body=b"", header=None, more=(), method="POST", query=b"", parts=1):
        """The status of a request, and what it was told."""
        if key is not None:
            target = path + (f"?{query.decode()}" if query else "")
            header = sign(key, method, target, body)
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
        asyncio.run(self.server(scope, receive, send))
        return sent[0]["status"], sent[1]["body"].decode()


@pytest.fixture
def place(tmp_path, monkeypatch):
    made = Place(tmp_path)
    monkeypatch.setattr("fedwidth.flower.access.signing.time.time_ns", lambda: int(made.now * 1e9))
    return made


def test_an_operator_is_heard_once_and_word_for_word(place):
    body = bytes(range(256)) * 40
    assert place.ask(LIST, key=place.operator, body=body, parts=7) == (200, "")
    assert place.reached == [body]


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
def test_whoever_signs_nothing_or_with_another_key_is_refused_unread(place, path):
    stranger = Ed25519PrivateKey.generate()
    for options in ({}, {"key": stranger}, {"header": ""}, {"header": "1 2 3 4"}, {"header": "a b c d e"}):
        status, said = place.ask(path, body=b"x" * 100, **options)
        assert status == 403
        assert "only operators" in said
    assert place.reached == []


def test_two_signatures_are_none(place):
    header = sign(place.operator, "POST", LIST, b"")
    status, said = place.ask(LIST, header=header, more=[(SIGNATURE.encode(), header.encode())])
    assert (status, "not signed" in said) == (403, True)


def test_keys_are_good_for_their_own_paths_only(place):
    assert place.ask(ACQUIRE, key=place.runtime)[0] == 200
    assert place.ask(ACQUIRE, key=place.operator)[0] == 403
    assert place.ask(LIST, key=place.runtime)[0] == 403
    assert place.ask("/v1/runtimes", key=place.runtime)[0] == 403


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"path": "/v1/control/stop-run"}, "nobody's who may"),
        ({"method": "GET"}, "nobody's who may"),
        ({"query": b"all=1"}, "nobody's who may"),
        ({"body": b"other"}, "not what was signed"),
    ],
)
def test_a_signature_is_for_one_method_path_query_and_content(place, change, why):
    header = sign(place.operator, "POST", LIST, b"body")
    asked = {"path": LIST, "body": b"body", "method": "POST", "query": b""} | change
    status, said = place.ask(asked.pop("path"), header=header, **asked)
    assert (status, why in said) == (403, True), said
    assert place.reached == []


def test_a_request_that_came_before_is_refused_also_by_a_server_that_was_started_again(place):
    header = sign(place.operator, "POST", LIST, b"")
    assert place.ask(LIST, header=header)[0] == 200
    status, said = place.ask(LIST, header=header)
    assert (status, "it came before" in said) == (403, True)
    for seconds in (1, WINDOW_SECONDS - 5):
        place.now += seconds
        assert place.ask(LIST, header=header)[0] == 403
    place.make()
    status, said = place.ask(LIST, header=header)
    assert (status, "before this server was started" in said) == (403, True)
    assert len(place.reached) == 1


def test_a_clock_that_is_ahead_does_not_let_a_request_outlive_the_server(place):
    for ahead, status in ((AHEAD_SECONDS + 1, 403), (AHEAD_SECONDS - 0.5, 200)):
        place.now += ahead
        header = sign(place.operator, "POST", LIST, b"")
        place.now -= ahead
        assert place.ask(LIST, header=header)[0] == status
    place.make()
    assert place.ask(LIST, header=header)[0] == 403


def test_two_keys_are_none(place):
    # Flower takes the first of two headers, so that the second must not speak for it.
    for name in "ab":
        make_node_key(place.folder / name)
    first, second = ((place.folder / f"{name}.pub").read_text().strip() for name in "ab")
    write_enrolled(place.enrolled, Enrolled(0, first))
    headers = [(NODE_KEY, base64.b64encode(pem_of(key))) for key in (second, first)]
    assert place.ask("/v1/fleet/pull-messages", more=headers[1:])[0] == 200
    assert place.ask("/v1/fleet/pull-messages", more=headers)[0] == 401


def test_devices_are_let_in_again_once_their_folder_is_mended(place):
    make_node_key(place.folder / "a")
    key = (place.folder / "a.pub").read_text().strip()
    write_enrolled(place.enrolled, Enrolled(0, key))
    header = [(NODE_KEY, base64.b64encode(pem_of(key)))]
    file = place.enrolled / "client-0.json"
    os.utime(place.enrolled, (1, 1))
    whole = file.read_text()
    file.write_text("{")
    assert place.ask("/v1/fleet/pull-messages", more=header)[0] == 401
    file.write_text(whole)
    os.utime(place.enrolled, (1, 1))
    assert place.ask("/v1/fleet/pull-messages", more=header)[0] == 200


def test_a_request_that_is_refused_for_its_content_cannot_be_sent_again_with_the_right_one(place):
    header = sign(place.operator, "POST", LIST, b"body")
    assert place.ask(LIST, header=header, body=b"other")[0] == 403
    assert "it came before" in place.ask(LIST, header=header, body=b"body")[1]


def test_a_request_counts_for_a_minute(place):
    for seconds, status in ((WINDOW_SECONDS - 1, 200), (WINDOW_SECONDS + 1, 403), (-WINDOW_SECONDS - 1, 403)):
        header = sign(place.operator, "POST", LIST, b"")
        place.now += seconds
        assert place.ask(LIST, header=header)[0] == status
        place.now -= seconds if seconds < 0 else 0


def test_what_was_used_is_forgotten_once_it_could_not_be_used_again(place):
    for _ in range(50):
        assert place.ask(LIST, key=place.operator)[0] == 200
        place.now += 10
    assert len(place.server._used) <= 4 * WINDOW_SECONDS / 10


def test_an_operator_who_is_taken_out_is_none_at_once_and_another_is_one(place, tmp_path):
    other = make_operator_key(tmp_path / "other", "second")
    assert place.ask(LIST, key=read_key(tmp_path / "other"))[0] == 403
    (tmp_path / "operators.pub").write_text(f"# who may\n{other}\n")
    assert place.ask(LIST, key=read_key(tmp_path / "other"))[0] == 200
    assert place.ask(LIST, key=place.operator)[0] == 403
    (tmp_path / "operators.pub").unlink()
    assert place.ask(LIST, key=read_key(tmp_path / "other"))[0] == 403


def test_too_large_a_request_is_refused_although_it_is_signed(place, monkeypatch):
    monkeypatch.setattr(module, "MAX_SIGNED", 10)
    assert "more than 10 bytes" in place.ask(LIST, key=place.operator, body=b"x" * 11, parts=3)[1]


def test_a_device_is_let_through_while_it_is_enrolled(place, tmp_path):
    make_node_key(tmp_path / "device", "client-3")
    public = " ".join((tmp_path / "device.pub").read_text().split()[:2])
    said = [(b"flwr-public-key", base64.b64encode(pem_of(public)))]
    assert place.ask(FLEET, more=said)[0] == 401
    write_enrolled(place.enrolled, Enrolled(3, public))
    assert place.ask(FLEET, more=said)[0] == 200
    assert place.ask(FLEET)[0] == 401
    (place.enrolled / "client-4.json").write_text("{")
    assert place.ask(FLEET, more=said)[0] == 401, "a folder that cannot be trusted lets nobody in"
    (place.enrolled / "client-4.json").unlink()
    assert place.ask(FLEET, more=said)[0] == 200
    remove_enrolled(place.enrolled, 3)
    assert place.ask(FLEET, more=said)[0] == 401


def test_a_device_is_told_in_flowers_own_words_that_it_is_not_let_in(place):
    from flwr.supercore.error import ApiErrorCode, FlowerError

    status, said = place.ask("/v1/fleet/activate-node")
    error = FlowerError.from_json(said)
    assert (status, error.code) == (412, ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED)
    assert error.message == "this device is not enrolled"


def test_enrolled_devices_are_not_read_again_for_every_request(place, tmp_path, monkeypatch):
    make_node_key(tmp_path / "device")
    public = " ".join((tmp_path / "device.pub").read_text().split()[:2])
    write_enrolled(place.enrolled, Enrolled(0, public))
    said = [(b"flwr-public-key", base64.b64encode(pem_of(public)))]
    monkeypatch.setattr(module, "SETTLED_SECONDS", 0.0)
    calls = []
    read = module.read_enrolled
    monkeypatch.setattr(module, "read_enrolled", lambda folder: calls.append(1) or read(folder))
    assert [place.ask(FLEET, more=said)[0] for _ in range(5)] == [200] * 5
    assert len(calls) == 1


def test_health_is_for_everyone_and_websockets_for_nobody(place):
    assert place.ask("/health", method="GET")[0] == 200
    sent = []

    async def send(event):
        sent.append(event)

    asyncio.run(place.server({"type": "websocket", "path": "/v1/control/x", "headers": []}, None, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_the_apps_signature_is_what_flowers_nodes_verify(place):
    """By Flower's own check, which a node makes before it runs an app."""
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.proto.fab_pb2 import Fab as FabMessage
    from flwr.supercore.fab import Fab
    from flwr.supernode.start_client_internal import _verify_fab

    from fedwidth.flower.deployment.app_folder import trusted

    content = b"an app"
    body = StartRunRequest(fab=FabMessage(content=content)).SerializeToString()
    more = [(APP_SIGNATURE.encode(), sign_app(place.operator, body).encode())]
    assert place.ask("/v1/control/start-run", key=place.operator, body=body, more=more)[0] == 200
    (found,) = place.apps.values()
    assert list(place.apps) == [hashlib.sha256(content).hexdigest()]
    assert found["valid_license"]
    line = trusted(place.folder / "operators.pub")
    name, key = line.strip().split(": ")
    assert name == name_of(place.operator.public_key())
    assert _verify_fab(Fab("", content, found), {name: key})
    assert not _verify_fab(Fab("", content + b"!", found), {name: key})
    stranger = {name: " ".join(make_operator_key(place.folder / "stranger").split()[:2])}
    assert not _verify_fab(Fab("", content, found), stranger)


def test_flower_keeps_the_signature_with_the_app(monkeypatch):
    from flwr.superlink.servicer.control import control_handlers

    monkeypatch.setattr(control_handlers, "Fab", control_handlers.Fab)
    module.sign_apps_with({"digest": {"name": "signature"}})
    assert control_handlers.Fab("digest", b"", {}).verifications == {"name": "signature"}
    assert control_handlers.Fab("other", b"", {}).verifications == {}
    assert control_handlers.Fab("digest", b"", {"store": "own"}).verifications == {"store": "own"}


def test_every_path_that_flower_serves_is_asked_for_proof(place, monkeypatch):
    """The real application: whatever it serves beside health is refused to a stranger, and nothing is forgotten."""
    monkeypatch.delenv("FLWR_DATABASE", raising=False)
    from flwr.superlink.main import create_app

    paths = {context.path for context in _routes(create_app())}
    assert {LIST, ACQUIRE, FLEET, "/docs", "/openapi.json", "/health"} <= paths
    for path in paths - {"/health"}:
        assert place.ask(path)[0] in (401, 403, 412), path
    assert place.reached == []


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
