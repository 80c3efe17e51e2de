"""Locks and appended lines: one process at a time, nothing left over by one that is killed, and no need for POSIX."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fedwidth
from fedwidth.errors import StateError
from fedwidth.files import LOCK, append_line, locked

HOLD = """
import sys, time
from pathlib import Path
from fedwidth.files import locked

with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""
APPEND = """
import sys
from pathlib import Path
from fedwidth.files import append_line

for number in range(40):
    append_line(Path(sys.argv[1]), f"{sys.argv[2]} {number} " + "x" * 20_000, lock=Path(sys.argv[1]).with_name(".lock"))
"""
POSIX_ONLY = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}


def holder(path: Path) -> subprocess.Popen:
    """Another process that holds the lock, until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    return process


def test_a_lock_is_held_by_one_block_and_free_after_it(tmp_path):
    path = tmp_path / LOCK
    with locked(path):
        with pytest.raises(BlockingIOError), locked(path):
            pass
        with pytest.raises(BlockingIOError), locked(path):  # being refused freed nothing
            pass
    with locked(path):
        pass
    assert path.read_bytes() == b""


def test_a_lock_is_free_after_an_error(tmp_path):
    with pytest.raises(KeyError), locked(tmp_path / LOCK):
        raise KeyError
    with locked(tmp_path / LOCK):
        pass


def test_a_killed_process_leaves_no_lock_behind(tmp_path):
    path = tmp_path / LOCK
    with holder(path) as process:
        with pytest.raises(BlockingIOError), locked(path):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
    with locked(path):
        pass


def test_who_waits_gets_the_lock_when_the_other_process_is_done(tmp_path):
    path, order = tmp_path / LOCK, []
    with holder(path) as process:
        with pytest.raises(BlockingIOError), locked(path):
            pass
        process.stdin.close()
        with locked(path, wait=True):
            order.append("held")
    assert order == ["held"]


def test_a_lock_that_cannot_be_had_is_an_error_of_the_system(tmp_path):
    (tmp_path / LOCK).mkdir()
    with pytest.raises(OSError) as refused, locked(tmp_path / LOCK):
        pass
    assert not isinstance(refused.value, BlockingIOError)


def test_lines_of_several_processes_stay_whole(tmp_path):
    path = tmp_path / "deep" / "lines.txt"
    path.parent.mkdir()
    processes = [subprocess.Popen([sys.executable, "-c", APPEND, str(path), name]) for name in "abc"]
    assert [process.wait() for process in processes] == [0, 0, 0]
    lines = [line.split() for line in path.read_text().splitlines()]
    assert sorted((name, int(number)) for name, number, _ in lines) == [(n, i) for n in "abc" for i in range(40)]
    assert {text for _, _, text in lines} == {"x" * 20_000}


def test_a_line_that_was_cut_short_is_left_behind_alone(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes(b"one\ntw")
    append_line(path, "three", lock=tmp_path / LOCK)
    append_line(path, "four", lock=tmp_path / LOCK)
    assert path.read_bytes() == b"one\ntw\nthree\nfour\n"


def test_a_line_that_cannot_be_written_is_said(tmp_path):
    path = tmp_path / "lines.txt"
    path.mkdir()
    with pytest.raises(StateError, match=r"cannot write .*lines\.txt: Is a directory"):
        append_line(path, "one", lock=tmp_path / LOCK)


def test_only_deployments_need_posix():
    """Training, reports and the command line import nothing that other systems lack."""
    package = Path(fedwidth.__file__).parent
    found = {}
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if needed := {name.split(".")[0] for name in names} & POSIX_ONLY:
                found[path.relative_to(package).as_posix()] = needed
    assert [path for path in found if not path.startswith("deployment/")] == []
