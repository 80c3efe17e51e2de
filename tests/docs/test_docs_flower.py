"""The commands of the documentation that need Flower, in the environment of `make test-flower`.

The server's address is replaced by this machine's, with a port that is free; the rest is as the page says.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower runs the commands that need it")

from doc_pages import page_name
from doc_runs import commands_in, pages_in

from fedwidth.cli.entry import run_command


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


@pytest.mark.parametrize("page", pages_in("test-flower", "fedwidth"), ids=page_name)
def test_commands_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    for where, _, command in commands_in("test-flower", "fedwidth"):
        if where != page:
            continue
        words = [os.path.expanduser(word) for word in command.words[1:]]
        if "--address" in words:
            words[words.index("--address") + 1] = "127.0.0.1"
            words += ["--port", free_port()]
        code = run_command(words)
        printed = capsys.readouterr()
        assert code == 0, f"{command}\n{printed.out}{printed.err}"
        assert {"init": "wrote ", "device": "wrote ", "doctor": "nothing is wrong"}[words[1]] in printed.out
    assert list(tmp_path.glob("*/nodes/client-0/start.sh")), "a deployment is there"
