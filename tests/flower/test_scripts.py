"""What the deployment's scripts call: starting a run and a device, and what they say where that cannot work."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

from fedwidth.deployment import versions
from fedwidth.deployment.access.keys import make_authority, make_server_certificate
from fedwidth.deployment.folder import launch
from fedwidth.deployment.node import connection, device

FAKE = """#!{python}
import sys
words = sys.argv[1:]
if words[0] == "list":
    print({listing!r})
else:
    print({said!r}, flush=True)
sys.exit({status} if words[0] == "run" else 0)
"""


@pytest.fixture
def play(tmp_path):
    """Call `launch` with a Flower that says so, and lists the run with this status."""

    def call(said="Successfully started run 7", status="finished:completed", details="", *, code=0, listing=None):
        path = tmp_path / "flwr"
        found = f'{{"runs": [{{"run-id": "7", "status": "{status}", "status-details": "{details}"}}]}}'
        path.write_text(FAKE.format(python=sys.executable, said=said, listing=listing or found, status=code))
        path.chmod(0o755)
        return launch.launch("app", "link", [], flwr=lambda *words: [str(path), *words], outcome_seconds=0.0)

    return call


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            {"status": "finished:failed", "details": "ServerApp failed with exception: only 1 of 4 nodes came"},
            "the run failed: only 1 of 4 nodes came",
        ),
        (
            {"status": "finished:failed", "details": "No heartbeat received from the task"},
            "the run failed: its process ended without a word (killed, or out of memory)",
        ),
        ({"status": "finished:stopped"}, "the run was stopped; ./run.sh goes on"),
        ({"status": "running"}, "the log ended, but the run is running"),
        ({"listing": "the connection was refused"}, "the server can no longer be asked"),
        ({"said": "Connection to the SuperLink is unavailable", "code": 1}, "the run was not started: see above"),
        ({"said": "nothing", "code": 0}, "the run was not started: see above"),
    ],
)
def test_a_run_that_did_not_finish_is_one_line_and_an_exit_status(play, capsys, options, why):
    assert play(**options) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {why}")
    assert error.count("\n") == 1


def test_a_finished_run_exits_with_zero_and_its_output_is_passed_on(play, capsys):
    assert play("Successfully started run 7\nround 1 of 3") == 0
    out, error = capsys.readouterr()
    assert "round 1 of 3" in out
    assert error == ""


@contextmanager
def server(folder: Path):
    """Something that shakes hands with the certificate in this folder, and hangs up; its address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def answer():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, suppress(OSError):  # the device hangs up, as it should
                    context.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(60)


def certify(folder: Path, *, hosts=("127.0.0.1",), days=30) -> Path:
    folder.mkdir()
    make_server_certificate(folder, make_authority(folder, days=days), list(hosts), days=days)
    return folder


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        ({}, None),
        ({"days": -2}, "certificate has expired"),
        ({"hosts": ("fed.example.org",)}, "not valid for '127.0.0.1'"),
    ],
)
def test_a_device_ends_where_the_servers_certificate_is_no_good(tmp_path, shown, why):
    place = certify(tmp_path / "c", **shown)
    with server(place) as address:
        found = connection.why_distrusted(address, str(place / "ca.pem"))
    assert found == why if why is None else f"the certificate of the server at {address} is refused" in found
    assert why is None or why in found


def test_a_device_ends_where_another_authority_signed(tmp_path):
    place, other = certify(tmp_path / "c"), certify(tmp_path / "other")
    with server(place) as address:
        assert "is refused" in connection.why_distrusted(address, str(other / "ca.pem"))


def test_a_server_that_is_not_there_is_waited_for(tmp_path):
    place = certify(tmp_path / "c")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert connection.why_distrusted(f"127.0.0.1:{taken.getsockname()[1]}", str(place / "ca.pem")) is None
    assert connection.why_distrusted("no-such-host.invalid:1", str(place / "ca.pem")) is None
    assert "is missing" in connection.why_distrusted("127.0.0.1:1", str(tmp_path / "none.pem"))
    (tmp_path / "empty.pem").touch()
    assert "holds no certificate" in connection.why_distrusted("127.0.0.1:1", str(tmp_path / "empty.pem"))


REFUSED = "Exit Code: 305\nFailed to initialize the connection to the SuperLink.\n[code: 2004] Failed to activate"
CUT_OFF = "Exit Code: 305\nFailed to initialize the connection to the SuperLink.\nproxy error"


@pytest.fixture
def connect(tmp_path):
    """Play attempts of SuperNodes that end so (connected, last output); what ends the device, and after how many."""
    authority = str(certify(tmp_path / "c") / "ca.pem")

    def call(*attempts, last="Exit Code: 302\nThe key is invalid."):
        now, made = [0.0], []
        waiting = [*attempts, (False, last)]

        def start(words):
            connected, output = waiting[min(len(made), len(waiting) - 1)]
            made.append(words)
            process = SimpleNamespace(poll=lambda: 0, wait=lambda *_: 0)
            return SimpleNamespace(connected=connected, process=process, last_output=lambda: output)

        def sleep(seconds):
            now[0] += seconds

        trainer = SimpleNamespace(failed=None)
        options = {"start": start, "clock": lambda: now[0], "sleep": sleep}
        return device.stay_connected(["x"], "127.0.0.1:9", authority, trainer, **options), len(made)

    return call


def test_a_device_that_was_cut_off_is_let_in_again(connect):
    """Refused for 90 seconds, then connected for a while, and so on: that heals."""
    attempts = [(True, ""), *[(False, REFUSED)] * 9, (True, ""), *[(False, REFUSED)] * 9, (True, "")]
    assert connect(*attempts) == ("The key is invalid.", len(attempts) + 1)


def test_a_device_the_server_does_not_know_ends_with_the_reason(connect):
    reason, tries = connect(*[(False, REFUSED)] * 50)
    assert "its key is not registered" in reason
    assert "clock" in reason
    assert tries == 12, "a try every 10 seconds for 100 seconds"


def test_what_may_heal_is_tried_for_ever(connect):
    assert connect(*[(False, CUT_OFF)] * 200)[1] == 201


@pytest.mark.parametrize(
    ("last", "why"),
    [
        ("usage: flower-supernode\nflower-supernode: error: unrecognized arguments: --prot", "unrecognized arguments"),
        ("[Errno 98] error while attempting to bind on address ('127.0.0.1', 9094): already in use", "another --port"),
        ("Exit Code: 606\nThe runtime is incompatible.\n\nFor more information, visit", "The runtime is incompatible."),
    ],
)
def test_what_cannot_heal_ends_a_device_at_once(connect, last, why):
    reason, tries = connect(last=last)
    assert why in reason
    assert tries == 1


def test_what_watches_over_a_device_leaves_its_memory_to_the_trainer(tmp_path):
    """The files that are copied to devices import neither PyTorch nor fedwidth."""
    for name in ("device.py", "conditions.py", "connection.py", "trainer_process.py"):
        (tmp_path / name).write_text(Path(device.__file__).with_name(name).read_text())
    code = "import sys, device; print({'torch', 'numpy', 'fedwidth', 'flwr'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "set()\n", done.stderr


def test_another_version_of_flower_is_refused_in_one_sentence():
    why = device.why_not_flower("1.410.2")
    assert re.match(r"flwr 1.410.2 is installed, but .* were made for flwr 1.41 to 1.42 .*'flwr==1.42", why)
    for found in ("1.41.0", "1.41.3", "1.41", "1.42.0", "1.42.9"):
        assert device.why_not_flower(found) is None
    versions.check_flower()


@pytest.mark.parametrize(
    "module",
    [
        "deployment.access.superlink",
        "deployment.node.device --superlink x:1 --root-certificates x",
        "deployment.folder.launch app link",
        "cli.entry deploy init x",
    ],
)
def test_no_script_starts_with_another_version_of_flower(tmp_path, module):
    """A package of that name and another version, first in the path: nothing of it is imported."""
    (tmp_path / "flwr-1.43.0.dist-info").mkdir()
    (tmp_path / "flwr-1.43.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: flwr\nVersion: 1.43.0\n")
    (tmp_path / "flwr.py").write_text("raise SystemError('imported')")
    name, *words = module.split()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv[1:] = {words!r}\n"
    code += f"from fedwidth.{name} import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert done.stderr.startswith(
        "error: flwr 1.43.0 is installed, but fedwidth's deployments were made for flwr 1.41 to"
    )
    assert done.stderr.count("\n") == 1
