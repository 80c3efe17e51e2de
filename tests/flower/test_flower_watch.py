"""A trainer or a SuperNode that hangs is noticed, named and replaced; SIGTERM ends a device."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

from loopback import free_ports, wait_until
from test_flower import recipe
from test_scripts import certify, server

from fedwidth.deployment.node import device
from fedwidth.deployment.node.client_app import train_block
from fedwidth.deployment.node.trainer_process import WHY, TrainerProcess, ask

ENDLESS = "def load(settings, client):\n    while True:\n        pass\n"


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    """A real trainer that is watched over closely."""
    (tmp_path / "endless.py").write_text(ENDLESS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*sys.path, str(tmp_path)]))
    made = TrainerProcess(str(tmp_path / "t.sock"), probe_seconds=0.3, hung_seconds=4.0)
    watching = threading.Thread(target=made.watch)
    watching.start()
    try:
        wait_until(lambda: made.answered, 120)
        yield made
    finally:
        device.end(made.end())
        watching.join(120)


def task(seconds: float) -> dict:
    """One that never ends: its data are read for ever."""
    return {"recipe": recipe(), "load": "endless:load", "client": 0, "seconds": seconds}


def is_replaced(trainer: TrainerProcess, first: int) -> bool:
    return trainer.process.pid != first and trainer.answered and ask(trainer.path, 5.0) == ""


def test_a_stopped_trainer_is_replaced_and_its_task_told_why(trainer):
    first = trainer.process.pid
    os.kill(first, signal.SIGSTOP)
    with pytest.raises(RuntimeError, match="ended before it answered: it gave no sign of life for 4 seconds"):
        train_block(task(600.0), {}, trainer.path)
    wait_until(lambda: is_replaced(trainer, first), 120)


def test_a_trainer_in_an_endless_loop_is_replaced_when_the_task_has_had_its_time(trainer):
    first = trainer.process.pid
    with pytest.raises(RuntimeError, match="the trainer did not answer within 3 seconds"):
        train_block(task(3.0), {}, trainer.path)
    wait_until(lambda: is_replaced(trainer, first), 120)
    assert Path(trainer.path + WHY).read_text() == "its task has taken more than 3 seconds"


def test_a_trainer_that_is_killed_over_a_task_is_replaced_and_the_task_is_not_tried_here(trainer):
    first = trainer.process.pid
    threading.Timer(2.0, os.kill, args=[first, signal.SIGKILL]).start()
    with pytest.raises(RuntimeError, match="ended before it answered: it ended with status -9"):
        train_block(task(600.0), {}, trainer.path)
    wait_until(lambda: is_replaced(trainer, first), 120)


def test_a_trainer_that_cannot_start_is_not_started_again(tmp_path, capfd):
    made = TrainerProcess(str(tmp_path / ("x" * 120)), probe_seconds=0.3)
    made.watch()
    assert made.failed == "the trainer could not start: see above"
    assert "at most 100 are possible" in capfd.readouterr().err


def test_a_trainer_ends_with_what_started_it(tmp_path):
    words = [sys.executable, "-m", "fedwidth.deployment.node.trainer", "--socket", str(tmp_path / "t")]
    code = f"import subprocess, time; print(subprocess.Popen({words!r}).pid, flush=True); time.sleep(600)"
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    trainer = int(parent.stdout.readline())
    try:
        wait_until((tmp_path / "t").is_socket, 120)
        parent.kill()
        parent.wait()
        wait_until(lambda: not (tmp_path / "t").exists(), 120)
    finally:
        parent.stdout.close()
        with suppress(ProcessLookupError):
            os.kill(trainer, signal.SIGKILL)


def test_a_supernode_that_hears_nothing_of_a_server_that_is_there_is_started_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    made, trainer = [], SimpleNamespace(failed=None)

    def start(arguments):
        made.append(device.SuperNodeProcess(arguments, silent_seconds=4.0))
        trainer.failed = "enough" if len(made) == 2 else None
        return made[-1]

    certificates = certify(tmp_path / "c")
    authority = str(certificates / "ca.pem")
    with server(certificates) as address:  # which shakes hands, and never answers a request
        words = ["--superlink", address, "--root-certificates", authority, "--port", str(free_ports(1))]
        ended = device.stay_connected(words, address, authority, trainer, start=start, sleep=lambda _: None)
    assert ended == "enough"
    assert made[0].process.returncode == -signal.SIGKILL, "as one is ended that may be stopped"
    assert "the SuperNode heard nothing for 4 s; it is started again" in capsys.readouterr().out


def test_while_the_server_is_away_nobody_is_blamed(tmp_path):
    authority = str(certify(tmp_path / "c") / "ca.pem")
    supernode = device.SuperNodeProcess(["--help"], silent_seconds=0.0)
    supernode.process.wait(120)
    supernode.answered -= 1000
    assert not supernode.is_silent("127.0.0.1:9", authority)
    assert time.monotonic() - supernode.answered < 500, "its time begins anew"


def marked(mark: str) -> list[int]:
    """Processes with this in their environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (place / "environ").read_bytes():
                found.append(int(place.name))
    return found


@pytest.mark.parametrize("stopped", [False, True])
def test_sigterm_ends_a_device_within_seconds(tmp_path, stopped):
    """Also where its trainer is stopped, and would not end by itself."""
    place = certify(tmp_path / "c")
    words = ["--superlink", "127.0.0.1:9", "--root-certificates", str(place / "ca.pem"), "--port", str(free_ports(1))]
    mark = f"FEDWIDTH_TEST={tmp_path}"
    environment = {**os.environ, "FEDWIDTH_TEST": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    started = subprocess.Popen([sys.executable, device.__file__, *words], cwd=tmp_path, env=environment)
    wait_until((tmp_path / "trainer.sock").is_socket, 120)
    wait_until(lambda: len(marked(mark)) >= 4, 120)  # device, trainer, SuperNode, SuperExec
    if stopped:
        (trainer,) = (p for p in marked(mark) if b"deployment.node.trainer" in Path(f"/proc/{p}/cmdline").read_bytes())
        os.kill(trainer, signal.SIGSTOP)
    begun = time.monotonic()
    started.terminate()
    assert started.wait(120) == 0
    wait_until(lambda: not marked(mark), 60)
    print(f"ended after {time.monotonic() - begun:.1f} s")
