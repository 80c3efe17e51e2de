"""`fedwidth deploy init` and `doctor`: what is written, what is refused, and what is found to be wrong."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

import tomllib

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from fedwidth.cli import run_command
from fedwidth.config import read_settings
from fedwidth.flower.app_folder import Plan, read_plan
from fedwidth.flower.doctor import examine
from fedwidth.flower.keys import hosts_of, make_authority, make_node_key, make_server_certificate

PORT = 18_473


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A deployment as the command writes it."""
    folder = tmp_path_factory.mktemp("deploy") / "d"
    words = f"--address fed.example.org --port {PORT} --nodes 2 --capacities 1,1/4 --set rounds=3"
    assert run_command(["deploy", "init", str(folder), *words.split()]) == 0
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    """A copy to break, on this machine's address."""
    shutil.copytree(made, tmp_path / "d")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return tmp_path / "d"


def wrongs(folder, **options):
    return [finding.text for finding in examine(folder, online=False, **options) if finding.kind == "wrong"]


def test_a_new_deployment_has_nothing_wrong(folder):
    assert wrongs(folder) == []
    assert read_plan(folder) == Plan("fed.example.org", PORT, 9094, 2, ("1", "1/4"), 365)


def test_a_run_waits_for_no_more_nodes_than_there_are(made):
    assert read_settings("quickstart").main.devices.per_round > 2
    config = tomllib.loads((made / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert config["wait-for"] == 2


def test_a_deployment_whose_server_runs_is_not_overwritten(folder, capsys):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        plan = json.loads((folder / "deployment.json").read_text()) | {"port": server.getsockname()[1]}
        (folder / "deployment.json").write_text(json.dumps(plan))
        assert run_command(["deploy", "init", str(folder), "--overwrite"]) == 2
    assert "stop the server before" in capsys.readouterr().err
    assert (folder / "certificates" / "ca.pem").exists()


def test_certificates_keys_and_app_are_what_flower_takes(made):
    server = x509.load_pem_x509_certificate((made / "certificates" / "server.pem").read_bytes())
    authority = x509.load_pem_x509_certificate((made / "certificates" / "ca.pem").read_bytes())
    server.verify_directly_issued_by(authority)
    assert hosts_of(server) == {"fed.example.org", "127.0.0.1", "localhost"}
    assert 364 <= (server.not_valid_after_utc - datetime.now(UTC)).days <= 365
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    key = load_ssh_public_key((made / "nodes" / "client-1" / "key.pub").read_bytes())
    assert key.curve.name == "secp384r1"
    for path in made.rglob("*"):
        if path.name in ("key", "ca.key", "server.key"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    app = tomllib.loads((made / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert app["components"]["clientapp"] == "fedwidth_app.client_app:app"
    assert read_settings(made / "app" / "fedwidth_app" / "recipe.toml").main.rounds == 3
    assert 'capacity="1/4"' in (made / "nodes" / "client-1" / "start.sh").read_text()
    for script in made.rglob("*.sh"):
        assert subprocess.run(["sh", "-n", str(script)]).returncode == 0
        assert os.access(script, os.X_OK)


def test_flower_builds_the_app(made, tmp_path):
    shutil.copytree(made / "app", tmp_path / "app")
    environment = {
        **os.environ,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_HOME": str(tmp_path),
    }
    command = [str(Path(sys.executable).parent / "flwr"), "build", "--app", str(tmp_path / "app")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.glob("*.fab"))


def test_an_existing_folder_is_kept_unless_told_otherwise(folder, tmp_path, capsys):
    before = (folder / "nodes" / "client-0" / "key").read_bytes()
    (folder / "run").mkdir()
    (folder / "run" / "result").write_text("kept")
    assert run_command(["deploy", "init", str(folder)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert (folder / "nodes" / "client-0" / "key").read_bytes() == before
    assert run_command(["deploy", "init", str(folder), "--overwrite"]) == 0
    assert (folder / "nodes" / "client-0" / "key").read_bytes() != before
    assert (folder / "run" / "result").read_text() == "kept"
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("years of work")
    assert run_command(["deploy", "init", str(other), "--overwrite"]) == 2
    assert (other / "thesis.tex").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--nodes", "0"], "nodes must be from 1"),
        (["--nodes", "1000"], "nodes must be from 1"),
        (["--port", "70000"], "port must be"),
        (["--address", "a b"], "address must be"),
        (["--address", "$(reboot)"], "address must be"),
        (["--capacities", "2"], "capacity must be above 0"),
        (["--capacities", "1,1/2,1/4", "--nodes", "2"], "3 capacities were given for 2 nodes"),
        (["--days", "-1"], "days must be at least 1"),
        (["--recipe", "nothing"], "nothing"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(tmp_path, capsys, words, why):
    assert run_command(["deploy", "init", str(tmp_path / "d"), *words]) == 2
    error = capsys.readouterr().err
    assert why in error
    assert error.count("\n") == 1
    assert not (tmp_path / "d").exists()


def test_the_doctor_refuses_what_is_no_deployment(tmp_path, capsys):
    assert run_command(["deploy", "doctor", str(tmp_path)]) == 2
    assert "is no deployment" in capsys.readouterr().err


def expire(folder):
    authority = make_authority(folder / "certificates", days=-2)
    make_server_certificate(folder / "certificates", authority, ["fed.example.org", "127.0.0.1"], days=-2)
    for node in (0, 1):
        shutil.copy(folder / "certificates" / "ca.pem", folder / "nodes" / f"client-{node}" / "ca.pem")


def other_host(folder):
    authority = make_authority(folder / "certificates", days=90)
    make_server_certificate(folder / "certificates", authority, ["elsewhere.org"], days=90)


def other_authority(folder):
    make_authority(folder / "certificates", days=90)


def other_server_key(folder):
    pem = (folder / "certificates" / "server.pem").read_bytes()
    make_server_certificate(
        folder / "certificates", make_authority(folder / "state", days=9), ["fed.example.org", "127.0.0.1"], days=90
    )
    (folder / "certificates" / "server.pem").write_bytes(pem)


FAULTS = {
    "a file that is gone": (lambda f: (f / "run.sh").unlink(), "run.sh is missing"),
    "a key others can read": (lambda f: (f / "nodes/client-0/key").chmod(0o644), "chmod 600"),
    "expired certificates": (expire, "server.pem expired on"),
    "another host's certificate": (other_host, "is for elsewhere.org, not for fed.example.org"),
    "another authority": (other_authority, "was not signed by"),
    "nodes with another authority": (other_authority, "that node will refuse the server"),
    "another server key": (other_server_key, "server.key does not belong to"),
    "a damaged certificate": (lambda f: (f / "certificates/server.pem").write_text("x"), "cannot be read"),
    "a key pair of two keys": (
        lambda f: make_node_key(f / "state" / "key") or shutil.copy(f / "state/key.pub", f / "nodes/client-0"),
        "does not belong to",
    ),
    "one key for two": (
        lambda f: [shutil.copy(f / "nodes/client-0" / n, f / "nodes/client-1") for n in ("key", "key.pub")],
        "have the same key",
    ),
    "a key that is none": (lambda f: (f / "nodes/client-1/key").write_text("x"), "no OpenSSH private key"),
    "a recipe with a typo": (
        lambda f: (f / "app/fedwidth_app/recipe.toml").write_text("round = 3"),
        "unknown key 'round'",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_doctor_finds(folder, fault):
    spoil, why = FAULTS[fault]
    spoil(folder)
    assert any(why in text for text in wrongs(folder)), wrongs(folder)


def test_the_doctor_says_which_command_is_not_in_the_path(folder, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/usr/bin")
    assert any("flower-superlink is not in PATH" in text for text in wrongs(folder))
    assert run_command(["deploy", "doctor", str(folder), "--offline"]) == 1
    assert "things to put right" in capsys.readouterr().out


def test_the_doctor_tells_a_stopped_server_from_a_wrong_one(folder):
    mark = folder / "deployment.json"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        mark.write_text(mark.read_text().replace("fed.example.org", "127.0.0.1").replace(str(PORT), str(port)))
        assert any("start ./superlink.sh" in str(finding) for finding in examine(folder))
        listener.listen()
        code = (
            "import socket, sys; s = socket.socket(fileno=int(sys.argv[1])); c, _ = s.accept(); c.recv(9);"
            "c.sendall(b'HTTP/1.1 400 Bad Request\\r\\n\\r\\n')"
        )
        words = [sys.executable, "-c", code, str(listener.fileno())]
        process = subprocess.Popen(words, pass_fds=[listener.fileno()])
        try:
            assert any("does not speak TLS" in str(finding) for finding in examine(folder))
        finally:
            process.kill()
            process.wait()
