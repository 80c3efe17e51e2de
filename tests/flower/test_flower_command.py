"""Who may command a real server: strangers on its machine get nothing, devices come and go one at a time. Minutes.

Run with `make test-flower`. The strangers have all that a process on the server's machine can have without a key: the
authority's certificate, Flower's own command line, the tokens that other processes show in the list of processes.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

from flwr.proto.control_pb2 import ListNodesRequest, ListRunsRequest, ListRunsResponse
from flwr.proto.runtime_pb2 import AcquireTaskRequest, GetNodesRequest, PullAppMessagesRequest
from flwr.supercore.constant import TASK_TOKEN_HEADER
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata
from loopback import BIN, Loopback, Proxy, wait_until
from test_flower import recipe

from fedwidth.deployment.access.keys import make_node_key
from fedwidth.deployment.access.signing import SIGNATURE, read_key, sign
from fedwidth.deployment.folder.app_folder import ENVIRONMENT, write_device

pytestmark = pytest.mark.slow

PROOF = "owned.txt"
LIST_RUNS, ACQUIRE = "/v1/control/list-runs", "/v1/runtime/acquire-task"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server whose run waits for devices."""
    made = Loopback(tmp_path_factory.mktemp("loop") / "d", recipe(), nodes=2)
    made.begin(recipe().replace("rounds = 3", "rounds = 500"), "long")
    try:
        made.superlink()
        made.register()
        made.run("wait-for=2 wait-seconds=3000.0 round-seconds=60.0")
        wait_until(lambda: "waiting for 2 nodes" in made.log("run"), 300, lambda: made.log("run"))
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def loop(server):
    """The same server with its two devices, and a run that goes on."""
    for client in (0, 1):
        server.node(client)
    server.wait_rounds(1)
    return server


def stranger(folder: Path, port: int, authority: bytes) -> dict[str, str]:
    """What a process on this machine has that is none of the deployment's: a new $FLWR_HOME and the CA's file."""
    home, app = folder / "home", folder / "app" / "evil"
    home.mkdir(parents=True)
    (folder / "ca.pem").write_bytes(authority)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "x"\n\n[superlink.x]\naddress = "127.0.0.1:{port}"\n'
        f'root-certificates = "{folder / "ca.pem"}"\n'
    )
    app.mkdir(parents=True)
    # Flower's command line imports the app where it is called: what counts is whether anyone else does.
    code = f'import os\n\nif "STRANGER" not in os.environ:\n    open("{folder / PROOF}", "w").write("owned")\n'
    (app / "__init__.py").write_text(code)
    for name in ("server_app", "client_app"):
        kind = "ServerApp" if name == "server_app" else "ClientApp"
        (app / f"{name}.py").write_text(f"from flwr.{kind.lower()} import {kind}\n\napp = {kind}()\n")
    (folder / "app" / "pyproject.toml").write_text(
        '[project]\nname = "evil"\nversion = "1.0.0"\nlicense = "Apache-2.0"\ndependencies = []\n'
        '[tool.flwr.app]\npublisher = "x"\n[tool.flwr.app.components]\n'
        'serverapp = "evil.server_app:app"\nclientapp = "evil.client_app:app"\n[tool.flwr.app.config]\n'
    )
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o644)
    return {**os.environ, **ENVIRONMENT, "FLWR_HOME": str(home), "STRANGER": "1"}


def gets_nothing(folder: Path, environment: dict[str, str], before: tuple[str, ...] = ()) -> None:
    """Flower's own commands, as the stranger calls them, are refused, and no code of his is run."""
    for words in (["list", "x"], ["supernode", "list", "x"], ["run", str(folder / "app"), "x"], ["stop", "1", "x"]):
        command = [*before, str(BIN / "flwr"), *words]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
        said = done.stdout + done.stderr
        assert done.returncode != 0, said
        assert "only operators of this deployment may ask this" in " ".join(said.replace("│", " ").split()), said
        assert "Successfully" not in said
    assert not (folder / PROOF).exists()


def authority(loop: Loopback) -> bytes:
    return (loop.folder / "certificates" / "ca.pem").read_bytes()


def ask(loop: Loopback, path: str, message, *, port: int = 0, **headers: str) -> tuple[int, bytes]:
    """Status and content of a request over TLS."""
    context = ssl.create_default_context(cafile=str(loop.folder / "certificates" / "ca.pem"))
    connection = http.client.HTTPSConnection("127.0.0.1", port or loop.setup.port, context=context, timeout=60)
    usual = {"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE}
    version = dict(RuntimeVersionMetadata.from_local_component("flwr CLI").as_metadata())
    try:
        connection.request("POST", path, message.SerializeToString(), {**usual, **version, **headers})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def signed(loop: Loopback, path: str, message) -> str:
    key = read_key(loop.folder / "operator" / "key")
    return sign(key, "POST", path, message.SerializeToString(deterministic=True))


def test_a_local_process_without_a_key_gets_nothing(server, tmp_path):
    environment = stranger(tmp_path / "s", server.setup.port, authority(server))
    gets_nothing(tmp_path / "s", environment)
    for path, message in ((LIST_RUNS, ListRunsRequest()), ("/v1/control/list-nodes", ListNodesRequest())):
        assert ask(server, path, message)[0] == 403


def test_root_without_the_operators_key_gets_nothing(server, tmp_path):
    """As the server's own user, with a key of its own instead of the operator's, which is somewhere else."""
    environment = stranger(tmp_path / "s", server.setup.port, authority(server))
    safe = server.folder.parent / "safe"
    shutil.move(server.folder / "operator", safe)
    try:
        gets_nothing(tmp_path / "s", environment)
        done = subprocess.run(
            ["./flwr.sh", "list"], cwd=server.folder, env=server.environment, capture_output=True, text=True
        )
        assert done.returncode != 0
        assert "operator/key cannot be used: No such file or directory" in done.stderr
        own = tmp_path / "own"
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(own)]
        if shutil.which("ssh-keygen"):
            subprocess.run(words, check=True)
        else:
            from fedwidth.deployment.access.keys import make_operator_key

            make_operator_key(own)
        forged = {**server.environment, "FEDWIDTH_OPERATOR_KEY": str(own)}
        done = subprocess.run(["./flwr.sh", "list"], cwd=server.folder, env=forged, capture_output=True, text=True)
        assert done.returncode != 0
        assert "nobody's who may" in " ".join((done.stdout + done.stderr).replace("│", " ").split())
        kept = {**server.environment, "FEDWIDTH_OPERATOR_KEY": str(safe / "key")}
        assert subprocess.run(["./flwr.sh", "list"], cwd=server.folder, env=kept, capture_output=True).returncode == 0
    finally:
        shutil.move(safe, server.folder / "operator")


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv, to be another user"
)
def test_another_user_gets_nothing_and_can_read_nothing(server):
    place = Path("/tmp") / f"stranger-{os.getpid()}"
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    try:
        environment = stranger(place, server.setup.port, authority(server)) | {"HOME": str(place)}
        if subprocess.run([*nobody, str(BIN / "flwr"), "--version"], env=environment, capture_output=True).returncode:
            pytest.skip("another user cannot run this environment's commands")
        gets_nothing(place, environment, nobody)
        for name in ("operator/key", "certificates/server.key", "enrolled", "run", "state/superlink.db", "nodes"):
            path = server.folder / name
            done = subprocess.run(
                [*nobody, "ls" if path.is_dir() else "cat", str(path)], capture_output=True, text=True
            )
            assert done.returncode != 0, name
            assert "Permission denied" in done.stderr
    finally:
        shutil.rmtree(place, ignore_errors=True)


def test_a_proxy_on_the_servers_machine_makes_nobody_an_operator(server, tmp_path):
    with closing(Proxy(server.setup.port)) as proxy:
        environment = stranger(tmp_path / "s", proxy.port, authority(server))
        gets_nothing(tmp_path / "s", environment)
        assert ask(server, LIST_RUNS, ListRunsRequest(), port=proxy.port)[0] == 403
        header = {SIGNATURE: signed(server, LIST_RUNS, ListRunsRequest())}
        assert ask(server, LIST_RUNS, ListRunsRequest(), port=proxy.port, **header)[0] == 200, "it does pass things on"


def test_a_request_that_an_operator_sent_before_is_refused(server):
    header = {SIGNATURE: signed(server, LIST_RUNS, ListRunsRequest())}
    status, content = ask(server, LIST_RUNS, ListRunsRequest(), **header)
    assert status == 200
    assert len(ListRunsResponse.FromString(content).run_dict) >= 1
    status, content = ask(server, LIST_RUNS, ListRunsRequest(), **header)
    assert status == 403
    assert "it came before" in json.loads(content)["detail"]


def test_the_token_in_the_list_of_processes_opens_nothing(server):
    """Flower shows a run's token in its command line, where every user of the machine can read it."""
    wait_until(lambda: tokens(server), 240)
    status, _ = ask(server, ACQUIRE, AcquireTaskRequest(supported_task_types=["flwr-serverapp"]))
    assert status == 403
    for token in tokens(server):
        for path, message in (("get-nodes", GetNodesRequest()), ("pull-messages", PullAppMessagesRequest())):
            status, content = ask(server, f"/v1/runtime/{path}", message, **{TASK_TOKEN_HEADER: token})
            assert status == 403
            assert "not signed" in json.loads(content)["detail"]
    operator = {SIGNATURE: signed(server, ACQUIRE, AcquireTaskRequest())}
    assert ask(server, ACQUIRE, AcquireTaskRequest(), **operator)[0] == 403, "an operator is no process of the server's"


def test_a_device_is_added_and_another_revoked_while_the_run_goes_on(loop):
    seen = len(loop.lines())
    write_device(loop.folder, loop.setup, 2, "1/4")
    make_node_key(loop.folder / "nodes" / "client-2" / "key", "client-2")
    deploy(loop, "add", str(loop.folder), "nodes/client-2/key.pub", "--max-capacity", "1/2")
    loop.node(2)
    wait_until(lambda: any(2 in line["clients"] for line in loop.lines()[seen:]), 240, lambda: loop.log("run"))
    deploy(loop, "revoke", str(loop.folder), "1")
    key = " ".join((loop.folder / "nodes" / "client-1" / "key.pub").read_text().split()[:2])
    assert key in (loop.folder / "enrolled" / "revoked.pub").read_text()
    done = len(loop.lines()) + 2  # the one in flight, and one that was drawn a moment ago
    wait_until(lambda: len(loop.lines()) >= done + 2, 300, lambda: loop.log("run"))
    later = [sorted(line["clients"]) for line in loop.lines()[done:]]
    assert all(1 not in clients for clients in later), later
    assert any(clients == [0, 2] for clients in later), "the others go on"
    assert "SuperNode terminated gracefully" in loop.log("node-1")


def test_what_a_run_writes_is_its_owners_alone(loop):
    for path in (loop.out, *loop.out.iterdir()):
        assert path.stat().st_mode & 0o077 == 0, path


def test_devices_run_no_app_that_the_operator_did_not_sign(loop, tmp_path):
    """The operator's own server, taken over: its database is told of an app that nobody signed."""
    loop.stop_run()
    package = loop.folder / "app" / "fedwidth_app" / "client_app.py"
    original = package.read_text()
    package.write_text(f'open("{tmp_path / PROOF}", "w").write("owned")\n' + original)
    try:
        script = tmp_path / "unsigned.py"
        source = Path(sys.modules["fedwidth.deployment.access.signing"].__file__).read_text()
        script.write_text(source.replace("request.headers[APP_SIGNATURE] = sign_app(key, body)", "pass"))
        key = {"FEDWIDTH_OPERATOR_KEY": str(loop.folder / "operator" / "key")}
        config = f'out="{tmp_path / "out"}" wait-for=1 wait-seconds=20.0'
        words = [sys.executable, "-P", str(script), "flwr", "run", str(loop.folder / "app"), "--run-config", config]
        done = subprocess.run(words, env=loop.environment | key, capture_output=True, text=True)
        assert re.search(r"started run \d+", done.stdout), done.stdout + done.stderr
        wait_until(
            lambda: "The FAB could not be verified" in loop.log("node-0"), 120, lambda: loop.log("node-0")[-3000:]
        )
        assert not (tmp_path / PROOF).exists()
    finally:
        package.write_text(original)


def deploy(loop: Loopback, *words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedwidth", "deploy", *words],
        cwd=loop.folder,
        env=loop.environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def tokens(loop: Loopback) -> list[str]:
    """What the command lines of this deployment's server apps show."""
    found = [re.search(r"flwr-serverapp .*--token (\S+)", words) for words in loop.family().values()]
    return [match[1] for match in found if match]
