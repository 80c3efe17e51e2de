import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from subprocess import PIPE

import pytest
from run_folders import lines, write_run

from fedwidth.cli.entry import run_command
from fedwidth.errors import OptionError
from fedwidth.report.serve import Server, make_server

SECRET = "the secret outside"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "outside.txt").write_text(SECRET)
    return write_run(tmp_path / "runs" / "a", "<script>alert(1)</script>", finished=False, done=4)


@pytest.fixture
def server(folder):
    server = make_server(folder.parent, port=0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def ask(server, path, *, method="GET", host=None, version=11):
    """(status, headers, body) of a request sent as it is written here."""
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=20)
    connection._http_vsn = version
    connection.putrequest(method, path, skip_host=True)
    if host != "":
        connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read().decode()
    connection.close()
    return found


def test_no_thread_is_left_when_a_server_ends_though_a_browser_keeps_an_idle_connection(folder):
    """A thread that still works when Python ends aborted the process now and then, on Ctrl-C."""
    server = make_server(folder.parent, port=0)
    before = set(threading.enumerate())
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    with socket.create_connection(server.server_address[:2]) as idle:
        assert ask(server, "/")[0] == 200  # the idle one was accepted before
        assert set(threading.enumerate()) - before > {serving}
        server.shutdown()
        server.server_close()
        serving.join()
        assert set(threading.enumerate()) <= before
        assert idle.recv(1) == b""


def test_the_page_and_its_data(server):
    status, headers, page = ask(server, "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "<script>alert" not in page
    assert "connect-src 'self'" in page
    state = re.search(r'data-live="(\w+)"', page)[1]
    status, headers, text = ask(server, "/data")
    assert (status, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
    assert json.loads(text)["state"] == state
    assert json.loads(text)["data"]["runs"][0]["done"] == 4
    assert ask(server, f"/data?after={state}")[0] == 204
    assert ask(server, "/data?after=something-else")[0] == 200


def test_new_lines_are_new_data_and_half_a_line_is_not(server, folder):
    def look():
        answer = json.loads(ask(server, "/data")[2])
        return answer["state"], answer["data"]["runs"][0]["done"]

    first = look()
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"round": 5, "train_')
    assert look() == first
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('loss": 1.0}\n')
    assert look()[1] == 5
    assert look()[0] != first[0]


@pytest.mark.parametrize(
    "path",
    [
        "/outside.txt",
        "/../outside.txt",
        "/../../../../../etc/passwd",
        "/%2e%2e/outside.txt",
        "/..%2foutside.txt",
        "/a/config.toml",
        "/a/metrics.jsonl",
        "/config.toml",
        "/report.html",
        "/data/../../outside.txt",
        "//etc/passwd",
        "/data/",
        "/Data",
        "/.",
        "/\\..\\outside.txt",
        "http://127.0.0.1/a/config.toml",
        "file:///etc/passwd",
        "/link",
    ],
)
def test_no_file_is_served(server, folder, path):
    (folder.parent / "link").symlink_to(folder.parent.parent / "outside.txt")
    status, _, body = ask(server, path)
    assert (status, body) == (404, "there is nothing here\n")


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "summary.json", "clients.json"])
def test_links_out_of_the_folder_are_not_followed(server, folder, name):
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(folder.parent.parent / "outside.txt")
    (folder.parent / "inner").symlink_to(folder.parent.parent)
    for path in ("/", "/data"):
        status, _, body = ask(server, path)
        assert status == 200
        assert SECRET not in body
    if name != "config.toml":
        assert f"a: {name} is a link" in body


def test_a_pipe_in_the_folder_does_not_block(server, folder):
    os.mkfifo(folder / "summary.json")
    assert "summary.json is no plain file" in ask(server, "/data")[2]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8750",
        "",
        "127.0.0.1.evil.example",
        "localhost@evil",
        "[::1",
        "[::1:8750",
        "::1",
        "[localhost]",
        "[127.0.0.1]:8750",
    ],
)
def test_other_names_are_refused(server, host):
    for path in ("/", "/data"):
        status, _, body = ask(server, path, host=host)
        assert status == 403
        assert "config" not in body


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1:99", "[::1]:8750"])
def test_its_own_names_are_answered_on_any_port(server, host):  # a tunnel changes the port
    assert ask(server, "/data", host=host)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "<b>"])
def test_it_only_reads(server, method):
    status, headers, body = ask(server, "/<script>", method=method)
    assert status in (400, 501)
    assert "<" not in body
    assert "Access-Control-Allow-Origin" not in headers


def test_head_has_no_body_and_headers_keep_others_out(server):
    status, headers, body = ask(server, "/", method="HEAD")
    assert (status, body) == (200, "")
    assert int(headers["Content-Length"]) > 1000
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Cache-Control"] == "no-store"


def test_a_folder_that_cannot_be_described_is_said_once(server, capsys, monkeypatch):
    def fail():
        raise RuntimeError("no\nway")

    monkeypatch.setattr(server.watch, "look", fail)
    for _ in range(3):
        assert ask(server, "/data")[0] == 500
    assert capsys.readouterr().err == "error: RuntimeError: no way\n"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "", "example.org"])
def test_other_interfaces_are_refused_unless_asked(host, tmp_path):
    with pytest.raises(OptionError, match="--expose"):
        make_server(tmp_path, host=host, port=0)


def test_exposed_on_purpose_with_a_warning(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Server, "serve_forever", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    assert run_command(["view", str(tmp_path), "--port", "0", "--host", "0.0.0.0", "--expose"]) == 0
    said = capsys.readouterr()
    assert said.err == f"warning: every machine that reaches 0.0.0.0 can read the runs in {tmp_path}\n"
    assert said.out.startswith("http://0.0.0.0:")


def test_bad_input_is_one_line_and_code_2(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, words in (
            ([str(tmp_path), "--port", port], f"port {port} of 127.0.0.1 is in use; give another with --port"),
            ([str(tmp_path), "--port", "70000"], "--port must be from 0 to 65535, not 70000"),
            ([str(tmp_path / "file")], "is a file; give the folder of a run"),
            ([str(tmp_path), "--host", "0.0.0.0"], "add --expose if that is wanted"),
        ):
            assert run_command(["view", *arguments]) == 2
            error = capsys.readouterr().err
            assert words in error
            assert error.count("\n") == 1


def test_ctrl_c_ends_it_quietly(tmp_path):
    write_run(tmp_path / "a", metrics=lines(3))
    command = [sys.executable, "-m", "fedwidth", "view", str(tmp_path), "--port", "0"]
    in_background = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]  # Ctrl-C ignored, as by a shell's &
    signals = (signal.SIGINT, signal.SIGTERM)
    started = [subprocess.Popen(in_background, stdout=PIPE, stderr=PIPE, text=True) for _ in signals]
    for process, how in zip(started, signals, strict=True):
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        process.send_signal(how)
        out, error = process.communicate(timeout=30)
        assert (process.returncode, out, error) == (0, "", "")
