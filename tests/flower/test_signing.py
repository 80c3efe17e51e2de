"""The parts of Flower on which proof rests: each test notices when one of them changes (decision 0015)."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListNodesResponse,
    RegisterNodeRequest,
    StartRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import AcquireTaskRequest

from fedwidth.config.read import read_settings
from fedwidth.deployment.access import authorisation, required_signatures, signing
from fedwidth.deployment.access.enrolment import pem_of, read_enrolled
from fedwidth.deployment.access.keys import make_node_key, make_operator_key
from fedwidth.deployment.access.signing import APP_SIGNATURE, RUNTIME_KEY, SIGNATURE, is_signed, sign_requests, text_of
from fedwidth.deployment.folder.admission import enrol, revoke
from fedwidth.deployment.folder.app_folder import write_deployment
from fedwidth.deployment.folder.registration import synchronise
from fedwidth.deployment.folder.setup import Setup
from fedwidth.errors import OptionError


@pytest.fixture
def sent(monkeypatch):
    """The requests that reach the network's edge, each answered with nothing."""
    requests = []

    def send(client, request, **options):
        requests.append(request)
        return httpx.Response(200, content=b"", request=request)

    monkeypatch.setattr(httpx.Client, "send", send)
    return requests


def client_of(kind):
    return kind.from_server_address("127.0.0.1:1", insecure=True, root_certificates=None, interceptors=[])


def is_good(key, request):
    moment, nonce, digest, signature = request.headers[SIGNATURE].split(" ")
    text = text_of(request.method, request.url.path, digest, moment, nonce)
    return is_signed(key.public_key(), signing.base64.b64decode(signature), text)


def test_flowers_command_line_sends_through_what_is_signed(sent):
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.runtime import RuntimeHttpClient

    key = Ed25519PrivateKey.generate()
    sign_requests(key, signing.CONTROL)
    control = client_of(ControlHttpClient)
    control.ListNodes(ListNodesRequest())
    control.StartRun(StartRunRequest())
    client_of(RuntimeHttpClient).AcquireTask(AcquireTaskRequest())
    listing, starting, other = sent
    assert is_good(key, listing)
    assert APP_SIGNATURE not in listing.headers
    assert is_good(key, starting)
    assert starting.url.path == signing.START_RUN
    assert APP_SIGNATURE in starting.headers
    assert SIGNATURE not in other.headers


def test_a_command_that_comes_too_early_is_signed_once_more(monkeypatch):
    """A run that is started as soon as the server listens: it cannot know yet what the one before it took."""
    from flwr.supercore.control import ControlHttpClient

    asked, slept = [], []

    def answer(_client, request, **_):
        asked.append(request.headers[SIGNATURE])
        refused = httpx.Response(403, json={"detail": f"only operators: {signing.TOO_EARLY}"}, request=request)
        return refused if len(asked) == 1 else httpx.Response(200, request=request)

    monkeypatch.setattr(httpx.Client, "send", answer)
    monkeypatch.setattr(signing.time, "sleep", slept.append)
    sign_requests(Ed25519PrivateKey.generate(), signing.CONTROL)
    client_of(ControlHttpClient).StartRun(StartRunRequest())
    assert len(set(asked)) == 2
    assert slept == [signing.AHEAD_SECONDS]


def test_flowers_processes_send_through_what_is_signed(sent):
    from flwr.supercore.runtime import RuntimeHttpClient

    key = Ed25519PrivateKey.generate()
    sign_requests(key, signing.RUNTIME)
    client_of(RuntimeHttpClient).AcquireTask(AcquireTaskRequest())
    assert is_good(key, sent[0])


def test_a_stream_is_signed_too(sent):
    from flwr.proto.control_pb2 import StreamLogsRequest
    from flwr.supercore.control import ControlHttpClient

    key = Ed25519PrivateKey.generate()
    sign_requests(key, signing.CONTROL)
    with suppress(Exception):  # the answer is no stream
        list(client_of(ControlHttpClient).StreamLogs(StreamLogsRequest()))
    assert is_good(key, sent[0])


def test_flower_finds_its_processes_by_these_names():
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType
    from flwr.superlink.cli.flower_superlink import _get_superexec_command

    started = _get_superexec_command("127.0.0.1:1", None, None, 1, False)[0], TASK_TYPE_TO_COMMAND[TaskType.SERVER_APP]
    assert started == required_signatures.PROCESSES


def test_headers_and_switches_have_these_names():
    from flwr.supercore import constant
    from flwr.superlink.cli import flower_superlink

    assert constant.FLEET_HTTP_PUBLIC_KEY_HEADER.encode() == authorisation.NODE_KEY
    module = sys.modules[flower_superlink.__module__]
    switches = [value for name, value in vars(module).items() if name.startswith("FLWR_INTERNAL_GRPC")]
    assert sorted(switches) == sorted(required_signatures.UNGUARDED)


def test_a_server_hands_its_processes_a_key_and_opens_no_other_port(tmp_path, monkeypatch):
    from flwr.superlink.servicer.control import control_handlers

    monkeypatch.setattr(control_handlers, "Fab", control_handlers.Fab)
    for name in (*required_signatures.UNGUARDED, RUNTIME_KEY):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    make_operator_key(tmp_path / "key")
    (tmp_path / "enrolled").mkdir()
    required_signatures.require_signatures(tmp_path / "key.pub", tmp_path / "enrolled")
    assert not any(name in os.environ for name in required_signatures.UNGUARDED)
    first = Path(os.environ["PATH"].split(":")[0])
    assert sorted(path.name for path in first.iterdir()) == sorted(required_signatures.PROCESSES)
    assert first.stat().st_mode & 0o077 == 0
    assert len(signing.key_of("flower-superexec", os.environ).private_bytes_raw()) == 32
    done = subprocess.run(["flower-superexec", "--version"], capture_output=True, text=True)
    assert f"Flower version: {version('flwr')}" in done.stdout, done.stderr


@pytest.fixture
def deployment(tmp_path, monkeypatch):
    """A folder with two devices that are enrolled."""
    monkeypatch.delenv(signing.OPERATOR_KEY, raising=False)
    write_deployment(tmp_path / "d", Setup(nodes=2), read_settings("quickstart").main)
    for client in (0, 1):
        make_node_key(tmp_path / "key", f"client-{client}")
        enrol(tmp_path / "d", Setup(nodes=2), tmp_path / "key.pub")
    return tmp_path / "d"


def test_a_server_is_told_of_devices_in_signed_requests(deployment, sent):
    assert list(synchronise(deployment, Setup(nodes=2))) == ["the server knows client-0", "the server knows client-1"]
    key = signing.read_key(deployment / "operator" / "key")
    assert all(is_good(key, request) for request in sent)
    asked = [RegisterNodeRequest.FromString(request.content) for request in sent[1:]]
    there = read_enrolled(deployment / "enrolled")
    assert {message.name: message.public_key for message in asked} == {
        f"client-{client}": pem_of(device.public_key) for client, device in there.items()
    }


def test_a_server_is_told_of_devices_that_were_revoked(deployment, monkeypatch):
    there = read_enrolled(deployment / "enrolled")
    nodes = [
        NodeInfo(node_id=5 + client, public_key=pem_of(device.public_key), name=f"client-{client}", status="online")
        for client, device in there.items()
    ]
    asked = []

    def send(client, request, **options):
        asked.append(request)
        content = ListNodesResponse(nodes_info=nodes).SerializeToString() if len(asked) == 1 else b""
        return httpx.Response(200, content=content, request=request)

    monkeypatch.setattr(httpx.Client, "send", send)
    revoke(deployment, 1)
    assert list(synchronise(deployment, Setup(nodes=2))) == ["the server no longer knows client-1"]
    assert UnregisterNodeRequest.FromString(asked[1].content).node_id == 6


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda request: httpx.Response(403, text="no\n\x1b[31m", request=request), "the server answered 403: no"),
        (lambda request: (_ for _ in ()).throw(httpx.ConnectError("refused")), "does not answer: refused"),
    ],
)
def test_a_server_that_will_not_listen_is_an_error_in_one_line(deployment, monkeypatch, answer, why):
    monkeypatch.setattr(httpx.Client, "send", lambda client, request, **options: answer(request))
    with pytest.raises(OptionError, match=why) as error:
        list(synchronise(deployment, Setup(nodes=2)))
    assert str(error.value).isprintable()


@pytest.mark.parametrize("missing", ["operators", "enrolled"])
def test_a_server_does_not_start_without_operators_or_devices(tmp_path, missing):
    make_operator_key(tmp_path / "key")
    (tmp_path / "enrolled").mkdir()
    names = {"operators": tmp_path / "key.pub", "enrolled": tmp_path / "enrolled"} | {missing: tmp_path / "none"}
    with pytest.raises(SystemExit, match="error: .*none"):
        required_signatures.require_signatures(**names)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "give one of Flower's commands"),
        (["rm"], "there is no command rm"),
        (["flwr", "list"], "FEDWIDTH_OPERATOR_KEY must name"),
        (["flower-superexec"], "is started by the server"),
    ],
)
def test_a_command_that_cannot_sign_says_so_in_one_line(words, why):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FEDWIDTH_")}
    command = [sys.executable, "-P", signing.__file__, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert why in done.stderr
    assert done.stderr.count("\n") == 1
