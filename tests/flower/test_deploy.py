"""`fedwidth deploy init` and `doctor`: what is written, what is refused, and what is found to be wrong."""

from __future__ import annotations

import json
import os
import re
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

from fedwidth.cli.entry import run_command
from fedwidth.config.read import read_settings
from fedwidth.config.write import settings_toml
from fedwidth.deployment.access.enrolment import Enrolled, read_enrolled
from fedwidth.deployment.access.keys import (
    hosts_of,
    make_authority,
    make_node_key,
    make_operator_key,
    make_server_certificate,
)
from fedwidth.deployment.folder.admission import enrol
from fedwidth.deployment.folder.app_folder import COPIED
from fedwidth.deployment.folder.doctor import examine
from fedwidth.deployment.folder.launch import finished
from fedwidth.deployment.folder.setup import Setup, read_setup

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
    """A copy to break, whose devices have made their keys and are enrolled."""
    shutil.copytree(made, tmp_path / "d")
    for client in (0, 1):
        place = tmp_path / "d" / "nodes" / f"client-{client}"
        subprocess.run([sys.executable, "device_key.py", str(client)], cwd=place, check=True, capture_output=True)
        enrol(tmp_path / "d", read_setup(tmp_path / "d"), place / "key.pub")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return tmp_path / "d"


def wrongs(folder, **options):
    return [finding.text for finding in examine(folder, online=False, **options) if finding.kind == "wrong"]


def test_a_new_deployment_has_nothing_wrong(folder):
    assert wrongs(folder) == []
    assert read_setup(folder) == Setup("fed.example.org", PORT, 9094, 2, ("1", "1/4"), 365)


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
    assert hosts_of(server) == {"fed.example.org", "127.0.0.1", "::1", "localhost"}
    assert 364 <= (server.not_valid_after_utc - datetime.now(UTC)).days <= 365
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    private = [path for path in made.rglob("*") if path.name in ("key", "ca.key", "server.key")]
    assert sorted(str(path.relative_to(made)) for path in private) == [
        "authority/ca.key",
        "certificates/server.key",
        "operator/key",
    ], "devices make their own keys, and the authority's is apart from the server's"
    for path in private:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE((made / "run").stat().st_mode) == 0o700
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
    before = (folder / "operator" / "key").read_bytes()
    (folder / "run" / "result").write_text("kept")
    assert run_command(["deploy", "init", str(folder)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert (folder / "operator" / "key").read_bytes() == before
    assert run_command(["deploy", "init", str(folder), "--overwrite"]) == 0
    assert (folder / "operator" / "key").read_bytes() != before
    assert list((folder / "enrolled").iterdir()) == []
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
    "results others can read": (lambda f: (f / "run").chmod(0o755), "chmod 700"),
    "the authority's key beside the server's": (
        lambda f: shutil.move(f / "authority/ca.key", f / "certificates/ca.key"),
        "ca.key is beside the server's key",
    ),
    "an operator whom the server does not know": (
        lambda f: make_operator_key(f / "operator/key"),
        "is not one of certificates/operators.pub",
    ),
    "an operator's key that is none": (lambda f: (f / "operator/key").write_text("x"), "cannot be used"),
    "no operators": (lambda f: (f / "certificates/operators.pub").write_text(""), "must hold Ed25519 public keys"),
    "a damaged enrolment": (lambda f: (f / "enrolled/client-0.json").write_text("{"), "client-0.json cannot be read"),
    "a key that is enrolled as another client": (
        lambda f: (f / "nodes/client-1").rename(f / "nodes/client-7"),
        "the key of client-7 is enrolled as client 1",
    ),
    "data that is not there": (
        lambda f: (f / "app/fedwidth_app/recipe.toml").write_text(
            f'method.name = "fedrolex"\ndata.name = "cifar10"\ndata.root = "{f}/none"\nmodel.name = "cnn"\n'
        ),
        "data set 'cifar10' not found",
    ),
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
    "secure sums of more devices than there are": (
        lambda f: (f / "app/fedwidth_app/recipe.toml").write_text("secure.enabled = true\n"),
        "secure sums open what 8 devices hold, and a round has 2: nothing is ever opened",
    ),
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


def test_the_doctor_calls_a_name_without_an_address_by_its_name(folder):
    mark = folder / "deployment.json"
    mark.write_text(mark.read_text().replace("fed.example.org", "no-such-host.invalid"))
    (said,) = [str(found) for found in examine(folder) if "no-such-host.invalid (" in str(found)]
    assert "does DNS work here?" in said
    assert "firewall" not in said


def test_a_server_on_ipv6_is_reached_there(tmp_path):
    assert run_command(["deploy", "init", str(tmp_path / "d"), "--address", "::1", "--port", str(PORT)]) == 0
    config = tomllib.loads((tmp_path / "d" / "flower" / "config.toml").read_text())
    assert config["superlink"]["deployment"]["address"] == f"[::1]:{PORT}"
    assert f"--superlink [::1]:{PORT}" in (tmp_path / "d" / "nodes" / "client-0" / "start.sh").read_text()
    assert "--host ::1 " in (tmp_path / "d" / "superlink.sh").read_text()
    outside = Setup("2001:db8::7")
    assert (outside.listen_address, outside.local_address) == ("::", "::1")
    assert {"2001:db8::7", "::1"} <= set(outside.hosts)
    assert (Setup("fed.example.org").listen_address, Setup("fed.example.org").local_address) == ("0.0.0.0", "127.0.0.1")


def test_devices_are_let_in_by_the_keys_they_made(folder, capsys):
    there = read_enrolled(folder / "enrolled")
    assert {client: device.max_capacity for client, device in there.items()} == {0: 1.0, 1: 0.25}, "as planned"
    made = folder / "nodes" / "client-1" / "key.pub"
    assert there[1].public_key == " ".join(made.read_text().split()[:2])
    words = ["deploy", "add", str(folder), str(made), "--max-capacity", "1/8", "--max-samples", "500"]
    assert run_command(words) == 0
    said = capsys.readouterr().out
    assert "client-1 is enrolled: capacity at most 0.125, samples at most 500" in said
    assert "./register.sh tells it once it does" in said
    assert read_enrolled(folder / "enrolled")[1] == Enrolled(1, there[1].public_key, 0.125, 500)
    assert read_enrolled(folder / "enrolled")[0] == there[0]
    assert run_command(["deploy", "add", str(folder), str(made)]) == 0
    assert "client-1 is enrolled already" in capsys.readouterr().out
    assert read_enrolled(folder / "enrolled")[1].max_capacity == 0.125


def test_a_revoked_key_stays_out_and_a_new_one_comes_in(folder, capsys):
    place = folder / "nodes" / "client-1"
    others = (folder / "enrolled" / "client-0.json").read_bytes()
    assert run_command(["deploy", "revoke", str(folder), "1"]) == 0
    assert list(read_enrolled(folder / "enrolled")) == [0]
    assert run_command(["deploy", "revoke", str(folder), "1"]) == 2
    assert "client 1 is not enrolled; enrolled clients: 0" in capsys.readouterr().err
    assert run_command(["deploy", "add", str(folder), str(place / "key.pub")]) == 2
    assert "was revoked" in capsys.readouterr().err
    assert run_command(["deploy", "add", str(folder), *map(str, (folder / "nodes").glob("*/key.pub"))]) == 0
    assert "left out: the key of" in capsys.readouterr().out
    make_node_key(place / "key", "client-1")
    assert run_command(["deploy", "add", str(folder), str(place / "key.pub")]) == 0
    assert list(read_enrolled(folder / "enrolled")) == [0, 1]
    assert (folder / "enrolled" / "client-0.json").read_bytes() == others


def test_one_more_device_gets_a_folder_without_a_key(folder, capsys):
    assert run_command(["deploy", "device", str(folder), "5", "--capacity", "1/2"]) == 0
    place = folder / "nodes" / "client-5"
    services = {"fedwidth-device.service", "Containerfile"}
    assert {path.name for path in place.iterdir()} == {"ca.pem", "operators.yaml", "start.sh", *COPIED, *services}
    assert 'client=5 capacity="1/2"' in (place / "start.sh").read_text()
    assert run_command(["deploy", "device", str(folder), "5"]) == 2
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words", "why"),
    [
        ("nothing", [], "is no public key"),
        (
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB5O0m4o9bSx0OZD2rGNQvZk9fK1v3tY8m5PqvO8b0Vd",
            [],
            "is no public key|ECDSA",
        ),
        ("KEY", [], "does not say which client"),
        ("KEY client-\u0663", [], "does not say which client"),
        ("KEY client-99999999999999", [], "does not say which client"),
        ("KEY \x1b[31mclient-1", [], "does not say which client"),
        ("KEY client-9999", [], "clients are numbered 0 to"),
        ("KEY client-0", [], "client 0 is enrolled with another key; deploy revoke"),
        ("KEY", ["--client", "1"], "client 1 is enrolled with another key"),
        ("KEY", ["--client", "5", "--max-capacity", "2"], "capacity must be above 0"),
        ("KEY0", ["--client", "5"], "is enrolled already, as client 0"),
    ],
)
def test_a_key_that_cannot_be_let_in_is_named_in_one_line(folder, tmp_path, capsys, content, words, why):
    make_node_key(tmp_path / "key")
    key = (tmp_path / "key.pub").read_text().strip()
    text = content.replace("KEY0", (folder / "nodes/client-0/key.pub").read_text().strip()).replace("KEY", key)
    (tmp_path / "request.pub").write_text(text)
    before = read_enrolled(folder / "enrolled")
    assert run_command(["deploy", "add", str(folder), str(tmp_path / "request.pub"), *words]) == 2
    said = capsys.readouterr().err
    assert re.search(why, said), said
    assert said.count("\n") == 1
    assert said.strip().isprintable()
    assert read_enrolled(folder / "enrolled") == before


def test_a_device_makes_its_key_once(folder):
    place = folder / "nodes" / "client-0"
    before = (place / "key").read_bytes()
    done = subprocess.run([sys.executable, "device_key.py", "0"], cwd=place, capture_output=True, text=True)
    assert done.returncode == 1
    assert "this device has a key" in done.stderr
    assert (place / "key").read_bytes() == before
    assert stat.S_IMODE((place / "key").stat().st_mode) == 0o600


def test_a_certificate_is_renewed_under_the_same_authority(folder, tmp_path, capsys):
    names = ("ca.pem", "server.pem", "server.key")
    before = {name: (folder / "certificates" / name).read_bytes() for name in names}
    away = tmp_path / "safe"
    shutil.move(folder / "authority", away)
    assert wrongs(folder) == [], "the server needs no authority"
    assert run_command(["deploy", "renew", str(folder)]) == 2
    assert "holds no certificate authority" in capsys.readouterr().err
    assert run_command(["deploy", "renew", str(folder), "--authority", str(away), "--days", "90"]) == 0
    after = {name: (folder / "certificates" / name).read_bytes() for name in names}
    assert [name for name in names if before[name] == after[name]] == ["ca.pem"]
    server = x509.load_pem_x509_certificate(after["server.pem"])
    assert 89 <= (server.not_valid_after_utc - datetime.now(UTC)).days <= 90
    assert wrongs(folder) == [], "devices still trust it"
    assert sorted(path.name for path in (folder / "certificates").iterdir()) == [
        "ca.pem",
        "operators.pub",
        *names[:0:-1],
    ]
    assert run_command(["deploy", "renew", str(folder), "--authority", str(away), "--days", "9999"]) == 2
    assert "give fewer --days" in capsys.readouterr().err
    make_authority(tmp_path, days=4000)
    assert run_command(["deploy", "renew", str(folder), "--authority", str(tmp_path)]) == 2
    assert "is another authority" in capsys.readouterr().err
    assert (folder / "certificates" / "server.pem").read_bytes() == after["server.pem"]


def test_an_authority_is_kept_elsewhere_and_used_again(tmp_path, capsys):
    safe = tmp_path / "safe"
    for name in ("one", "two"):
        assert run_command(["deploy", "init", str(tmp_path / name), "--authority", str(safe)]) == 0
        assert not (tmp_path / name / "authority").exists()
        assert [path.name for path in (tmp_path / name).rglob("ca.key")] == []
    assert (tmp_path / "one/certificates/ca.pem").read_bytes() == (tmp_path / "two/certificates/ca.pem").read_bytes()
    beside = ["--authority", str(tmp_path / "three" / "certificates")]
    assert run_command(["deploy", "init", str(tmp_path / "three"), *beside]) == 2
    assert "must not be beside the server's" in capsys.readouterr().err


def test_a_run_that_has_finished_is_not_started_again(folder, tmp_path):
    from fedwidth.deployment.run_config import RunConfig
    from fedwidth.experiment import Experiment

    recipe = folder / "app" / "fedwidth_app" / "recipe.toml"
    settings = read_settings(recipe, ["rounds=1", "data.clients=4", "devices.per_round=2"]).main
    recipe.write_text(settings_toml(settings))
    assert finished(folder / "app", []) is None
    Experiment(RunConfig().with_defaults(settings)).run(tmp_path / "out")
    said = finished(folder / "app", ["--run-config", f'round-seconds=9.0 out="{tmp_path / "out"}"'])
    assert said is not None
    assert "has finished: 1 of 1 rounds" in said
    recipe.write_text(settings_toml(read_settings(recipe, ["rounds=2"]).main))
    assert finished(folder / "app", ["--run-config", f'out="{tmp_path / "out"}"']) is None
    budgets = read_settings(recipe, ["rounds=1", "devices.budgets.phone.upload=1GB"]).main
    recipe.write_text(settings_toml(budgets))
    Experiment(RunConfig().with_defaults(budgets)).run(tmp_path / "budgets")
    said = finished(folder / "app", ["--run-config", f'out="{tmp_path / "budgets"}"'])
    assert said is not None, "its folder has the capacities that budgets came to"


def test_everything_that_scripts_write_is_private(made):
    for script in (*made.glob("*.sh"), *made.glob("nodes/*/*.sh")):
        assert "\numask 077\n" in script.read_text(), script
