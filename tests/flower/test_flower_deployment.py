"""Real deployments on this machine, over TLS with node authentication: equivalence, faults, intruders. Minutes.

Run with `make test-flower`; docs/deploy-flower.md says when it was last run and what it measured.
"""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import ssl
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from loopback import Loopback, running, wait_until
from replay import replayed
from test_flower import CLIENTS, recipe

from fedwidth.deployment.access.guard import MAX_REPLY
from fedwidth.deployment.access.keys import make_authority, make_node_key, make_server_certificate
from fedwidth.deployment.folder.doctor import examine
from fedwidth.deployment.folder.registration import statuses
from fedwidth.deployment.node.connection import is_refusal
from small_runs import same

pytestmark = pytest.mark.slow

RUBBISH = int(os.environ.get("FEDWIDTH_RUBBISH_BYTES", 2_000_000_000))


@pytest.fixture(scope="module")
def loop(tmp_path_factory):
    """A SuperLink and four nodes of two capacities, which several runs share."""
    with running(tmp_path_factory.mktemp("loop") / "d", recipe(), CLIENTS) as made:
        yield made


@pytest.mark.parametrize("method", ["fedrolex", "heterofl", "fedbrb"])
def test_three_rounds_equal_the_embedded_engine_bit_for_bit(loop, method):
    text = recipe(f'method.name = "{method}"\n')
    loop.begin(text, method)
    run = loop.run()
    loop.wait_finished()
    assert run.wait(240) == 0
    lines = loop.lines()
    assert [sorted(line["clients"]) for line in lines] == [[0, 1, 2, 3]] * 3
    assert {c: w for line in lines for c, w in zip(line["clients"], line["capacities"], strict=True)} == {
        0: 1.0,
        1: 0.25,
        2: 1.0,
        3: 0.25,
    }
    assert same(loop.state(), replayed(text, lines))
    seconds = [later["seconds"] - sooner["seconds"] for sooner, later in pairwise(lines)]
    print(f"\n{method}: seconds per round {[round(s, 1) for s in seconds]}, load {os.getloadavg()[0]:.1f}")


def test_the_doctor_finds_a_running_deployment_in_order(loop, monkeypatch):
    monkeypatch.setenv("PATH", loop.environment["PATH"])
    said = lambda: "\n".join(map(str, examine(loop.folder)))  # noqa: E731
    wait_until(lambda: "4 of 4 nodes are online" in said(), 300, said)
    assert "wrong" not in said()


def test_intruders_are_refused(loop, tmp_path):
    """An unregistered key, a registered public key without its private one, plain HTTP, and too large a request."""
    make_node_key(tmp_path / "stranger")
    stranger = loop.node(
        0,
        name="stranger",
        **{"--auth-supernode-private-key": str(tmp_path / "stranger"), "--port": str(loop.setup.node_port + CLIENTS)},
    )
    assert stranger.wait(240) != 0
    assert "authenticat" in loop.log("stranger").lower() or "305" in loop.log("stranger")
    assert is_refusal(loop.log("stranger")), "start.sh reads these words"
    plain = loop.node(
        1,
        name="plain",
        **{
            "--insecure": "",
            "--root-certificates": "",
            "ca.pem": "",
            "--auth-supernode-private-key": "",
            "key": "",
            "--max-retries": "2",
            "--port": str(loop.setup.node_port + CLIENTS),
        },
    )
    wait_until(lambda: plain.poll() is not None or "retrying" in loop.log("plain"), 240, lambda: loop.log("plain"))
    assert "SuperNode ID" not in loop.log("plain")
    loop.kill("plain")
    with socket.create_connection(("127.0.0.1", loop.setup.port), timeout=60) as connection:
        connection.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        connection.settimeout(60)
        with suppress(ConnectionResetError):
            assert b" 200 " not in connection.recv(100)
    for path in ("pull-messages", "push-messages", "push-object", "activate-node", "register-node"):
        assert request(loop, f"/v1/fleet/{path}", b"", impostor(loop, tmp_path)) == 401
    before = memory(loop)["deployment.access.superlink"]
    assert request(loop, "/v1/fleet/push-object", b"", {"content-length": "2000000000"}) == 413
    assert memory(loop)["deployment.access.superlink"] < before + 50e6


def test_an_expired_certificate_is_refused_by_nodes(tmp_path):
    made = Loopback(tmp_path / "d", recipe(), nodes=1, capacities=("1",))
    place = made.folder / "certificates"
    make_server_certificate(place, make_authority(place, days=-1), ["127.0.0.1"], days=-1)
    (made.folder / "nodes" / "client-0" / "ca.pem").write_bytes((place / "ca.pem").read_bytes())
    try:
        made.superlink()
        node = made.node(0, resident=False, **{"--max-retries": "1"})
        wait_until(lambda: node.poll() is not None or "retrying" in made.log("node-0"), 240, lambda: made.log("node-0"))
        assert "SuperNode ID" not in made.log("node-0")
        made.kill("node-0")
        assert made.node(0, name="device").wait(240) == 1, "start.sh does not try for ever"
        (last,) = made.log("device").splitlines()[-1:]
        assert last.startswith("error: the certificate of the server at 127.0.0.1:")
        assert last.endswith("is refused: certificate has expired")
        assert any("certificate has expired" in str(finding) for finding in examine(made.folder))
    finally:
        made.close()


def test_a_device_that_is_not_registered_ends_with_the_reason(tmp_path):
    made = Loopback(tmp_path / "d", recipe(), nodes=1, capacities=("1",))
    try:
        made.superlink()
        assert made.node(0).wait(400) == 1
        (last,) = made.log("node-0").splitlines()[-1:]
        assert last.startswith("error: the server at 127.0.0.1:")
        assert "its key is not registered (./register.sh on the server)" in last
    finally:
        made.close()


def test_a_run_that_fails_says_why_in_one_line_and_has_an_exit_status(loop):
    loop.begin(recipe(), "fails")
    assert loop.run("wait-for=9 wait-seconds=8.0").wait(300) == 1
    said = loop.log("run")
    assert re.match(r"error: the run failed: only \d of 9 nodes came within 8 seconds$", said.splitlines()[-1])
    assert "Traceback" not in said


def test_a_second_run_in_one_folder_is_refused(loop):
    loop.begin(recipe(), "alone")
    first = loop.run()
    wait_until(lambda: "waiting for" in loop.log("run"), 240, lambda: loop.log("run"))
    second = loop.start("second", "./run.sh", "--run-config", f'out="{loop.out}" round-seconds=99.0')
    assert second.wait(300) == 1
    assert f"another run is writing to {loop.out}" in loop.log("second").splitlines()[-1]
    assert "Traceback" not in loop.log("second")
    assert first.wait(400) == 0, loop.log("run")
    assert same(loop.state(), replayed(recipe(), loop.lines()))


def test_a_server_app_and_then_the_superlink_are_killed_and_the_run_goes_on(loop):
    text = recipe().replace("rounds = 3", "rounds = 6")
    loop.begin(text, "killed")
    loop.run()
    loop.wait_rounds(2)
    killed = max(pid for pid, words in loop.family().items() if "flwr-serverapp" in words)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: killed not in loop.family(), 60)
    loop.kill("run")
    loop.run()
    loop.wait_rounds(4)
    loop.kill("superlink")
    loop.kill("run")
    done = len(loop.lines())
    loop.superlink()
    loop.run()
    loop.wait_finished(400)
    lines = loop.lines()
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert done in (4, 5)
    assert same(loop.state(), replayed(text, lines))


def test_a_killed_node_is_left_out_and_comes_back(loop):
    text = recipe().replace("rounds = 3", "rounds = 40").replace("evaluation.every = 2", "evaluation.every = 50")
    loop.begin(text, "node")
    loop.run("round-seconds=40.0 least-clients=2")
    loop.wait_rounds(1)
    loop.kill("node-3")
    wait_until(lambda: any(3 not in line["clients"] for line in loop.lines()), 180, lambda: loop.log("run"))
    loop.node(3)
    missed = len(loop.lines())
    wait_until(lambda: any(3 in line["clients"] for line in loop.lines()[missed:]), 240, lambda: loop.log("run"))
    loop.stop_run()
    lines = loop.lines()
    absent = [line for line in lines if 3 not in line["clients"]]
    assert all(sorted(line["clients"]) == [0, 1, 2] for line in absent)
    state = loop.state()
    text = text.replace("rounds = 40", f"rounds = {len(lines)}")
    assert same(state, replayed(text, lines))


MISBEHAVE = '''

def misbehave(message, context, call_next):
    """Client 1 sends wrong shapes, client 2 NaN; client 3 sends what fills memory."""
    reply, client = call_next(message, context), context.node_config["client"]
    if message.metadata.message_type != "train" or client == 0:
        return reply
    arrays = dict(reply.content["arrays"])
    name, old = next(iter(arrays.items()))
    if client == 1:
        arrays[name] = Array(old.dtype, tuple(reversed(old.shape)), old.stype, old.data)
    elif client == 2:
        arrays[name] = Array(old.dtype, old.shape, old.stype, b"\\xff" * len(old.data))
    else:
        import os
        for number in range(BYTES // 100_000_000):
            arrays[f"rubbish{number}"] = Array("uint8", (1,), old.stype, os.urandom(100_000_000))
    reply.content["arrays"] = ArrayRecord(arrays)
    return reply


for key, function in list(app._registered_funcs.items()):
    app._registered_funcs[key] = (lambda inner: lambda m, c: misbehave(m, c, inner))(function)
'''


def test_hostile_nodes_are_named_and_two_gigabytes_do_not_fill_the_server(loop):
    text = recipe().replace("rounds = 3", "rounds = 1")
    loop.begin(text, "hostile", more=MISBEHAVE.replace("BYTES", str(RUBBISH)))
    before, highest = memory(loop), dict.fromkeys(SERVER, 0.0)
    loop.run("round-seconds=400.0")

    def finished() -> bool:
        for name, size in memory(loop).items():
            highest[name] = max(highest[name], size)
        return (loop.out / "summary.json").exists()

    wait_until(finished, 600, lambda: loop.log("run"))
    (line,) = loop.lines()
    assert line["clients"] == [0]
    assert "has shape" in line["absent"]["1"]
    assert "not finite" in line["absent"]["2"]
    # Whichever comes first: the part that is too large, or the one that the guard did not let in.
    assert line["absent"]["3"].startswith(("its answer is refused unread: it has more than", "its upload stopped"))
    most = {name: round(size / 1e6) for name, size in highest.items()}
    print(f"\n{RUBBISH / 1e9:g} GB: {line['absent']['3']}; MB at most: {most}")
    assert highest["deployment.access.superlink"] < before["deployment.access.superlink"] + 3 * MAX_REPLY + 100e6
    assert highest["flwr-serverapp"] < 900e6, "PyTorch, the model, and one answer at a time"
    assert same(loop.state(), replayed(text, [line]))
    # And the deployment still works: the next run is a plain one, with every client.
    text = recipe()
    loop.begin(text, "after")
    loop.run()
    loop.wait_finished()
    assert [sorted(line["clients"]) for line in loop.lines()] == [[0, 1, 2, 3]] * 3


ECHO = """

def train_block(facts, tensors, trainer):
    answer = {name: facts[name] for name in ("token", "round", "client", "index")}
    return answer | {"weight": 1.0, "passes": 1, "loss": 0.0, "labels": [0]}, tensors
"""


def test_a_resident_trainer_brings_a_round_near_the_transports_own_time(loop):
    """Seconds per round with four nodes: no training at all, the resident trainer, and a process that imports torch."""
    text, measured = recipe().replace("rounds = 3", "rounds = 4"), {}
    for name in ("transport alone", "resident", "one process a message"):
        loop.begin(text, name.replace(" ", "-"), more=ECHO if name == "transport alone" else "")
        if name == "one process a message":
            for client in range(CLIENTS):
                loop.kill(f"node-{client}")
            # Flower takes a key again once it has missed the heartbeats of the node that had it.
            wait_until(lambda: "online" not in statuses(loop.folder, loop.setup).values(), 300)
            for client in range(CLIENTS):
                loop.node(client, resident=False)
        loop.run()
        loop.wait_finished(600)
        seconds = [line["seconds"] for line in loop.lines()]
        measured[name] = (seconds[-1] - seconds[0]) / (len(seconds) - 1), os.getloadavg()[0]
    for name, (seconds, load) in measured.items():
        print(f"\n{name}: {seconds:.1f} s a round (load average {load:.1f})", end="")
    assert measured["resident"][0] < measured["one process a message"][0]


def impostor(loop: Loopback, tmp_path: Path) -> dict[str, str]:
    """Headers with client 0's public key, signed by another one."""
    from base64 import b64encode
    from datetime import UTC, datetime

    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_ssh_private_key,
        load_ssh_public_key,
    )
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
    from flwr.supercore.primitives.asymmetric import sign_message

    theirs = load_ssh_public_key((loop.folder / "nodes" / "client-0" / "key.pub").read_bytes())
    own = load_ssh_private_key((tmp_path / "stranger").read_bytes(), None)
    now = datetime.now(UTC).isoformat()
    public = theirs.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return {
        TIMESTAMP_HEADER: now,
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public).decode(),
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(own, now.encode())).decode(),
    }


def request(loop: Loopback, path: str, body: bytes, headers: dict[str, str]) -> int:
    """The status of a request over TLS."""
    context = ssl.create_default_context(cafile=str(loop.folder / "certificates" / "ca.pem"))
    connection = http.client.HTTPSConnection("127.0.0.1", loop.setup.port, context=context, timeout=60)
    try:
        connection.request(
            "POST", path, body, {"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE, **headers}
        )
        return connection.getresponse().status
    finally:
        connection.close()


SERVER = ("deployment.access.superlink", "flower-superexec", "flwr-serverapp")


def memory(loop: Loopback) -> dict[str, float]:
    """Resident bytes of the server's processes."""
    found = {}
    for pid, words in loop.family().items():
        for name in SERVER:
            with suppress(OSError):
                if name in words:
                    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                    found[name] = max(found.get(name, 0.0), float(pages * os.sysconf("SC_PAGE_SIZE")))
    return found
