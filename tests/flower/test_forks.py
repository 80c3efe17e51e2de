"""Flower's processes of a device are forks of one that has imported Flower, and are otherwise what they always were."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, SubprocessExecutor
from flwr.supercore.superexec.plugin.base_exec_plugin import AutoExecPlugin
from loopback import wait_until

from small_runs import RECIPE

NODE = str(files("fedwidth.deployment.node"))
"""Where the files are that devices have copies of."""

PROGRAMS = """
import json, os, signal, subprocess, sys, time
sys.path.insert(0, "{node}")
import forks

seen = []

def note(name):
    seen.append(name)
    facts = dict(words=sys.argv, parent=os.getppid(), pid=os.getpid(), seen=seen)
    facts["starts"] = subprocess.Popen.__name__
    facts["chld"] = signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
    facts["int"] = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    open(name + "-" + str(os.getpid()) + ".part", "w").write(json.dumps(facts))
    os.rename(name + "-" + str(os.getpid()) + ".part", name + "-" + str(os.getpid()) + ".json")

def supernode():
    note("supernode")
    subprocess.Popen(["flower-superexec", "--parent-pid", str(os.getpid())])
    assert subprocess.run(["true"]).returncode == 0
    time.sleep(60)

def superexec():
    note("superexec")
    for number in range(2):
        subprocess.Popen(["flwr-clientapp", "--token", str(number)])
    time.sleep(3)

def clientapp():
    note("clientapp")
    assert subprocess.run(["true"]).returncode == 0
    note("after")

programs = {{"flower-supernode": supernode, "flower-superexec": superexec, "flwr-clientapp": clientapp}}
sys.argv = forks.start_fork_server(programs)
programs[sys.argv[0]]()
"""


def found(folder: Path, name: str) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"{name}-*.json"))]


def exists(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


@pytest.fixture
def running(tmp_path):
    (tmp_path / "programs.py").write_text(PROGRAMS.format(node=NODE))
    process = subprocess.Popen([sys.executable, "programs.py", "--port", "1"], cwd=tmp_path, start_new_session=True)
    try:
        wait_until(lambda: len(found(tmp_path, "after")) == 2, 30)
        yield tmp_path, process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at /proc")
def test_each_program_runs_in_a_fork_of_its_own(running):
    folder, process = running
    (supernode,), (superexec,) = found(folder, "supernode"), found(folder, "superexec")
    apps = found(folder, "clientapp")
    assert supernode["pid"] == process.pid, "which whoever started it can end"
    assert supernode["words"] == ["flower-supernode", "--port", "1"]
    assert superexec["words"] == ["flower-superexec", "--parent-pid", str(process.pid)]
    assert sorted(app["words"] for app in apps) == [["flwr-clientapp", "--token", str(n)] for n in range(2)]
    server = superexec["parent"]
    assert {app["parent"] for app in apps} == {server}, "they are forks of what has run nothing"
    assert server not in {process.pid, superexec["pid"]}
    assert Path(f"/proc/{server}/comm").read_text() == "fedwidth-forks\n"
    assert all(app["seen"] == ["clientapp"] for app in apps), "nothing of another task"
    assert all(app["chld"] and app["int"] for app in apps), "signals as in a new process"
    assert {app["starts"] for app in apps} == {"Popen"}
    assert supernode["starts"] == superexec["starts"] == "fork_or_start"
    assert len(found(folder, "after")) == 2, "a task can start programs and wait for them"


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_fork_server_ends_with_the_supernode(running, number):
    folder, process = running
    server = found(folder, "superexec")[0]["parent"]
    assert exists(server)
    process.send_signal(number)
    process.wait()
    wait_until(lambda: not exists(server), 5)


def test_flower_is_imported_without_a_thread():
    """A fork of a process with threads may hang: whatever they held stays locked."""
    if not Path("/proc/self/task").exists():
        pytest.skip("looks at /proc")
    words = (
        "import os, forks; forks.load_programs()\n"
        "print(len(os.listdir('/proc/self/task')), os.environ.get('OPENBLAS_NUM_THREADS'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", words],
        env={**os.environ, "PYTHONPATH": NODE},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split()[0] == "1", done.stdout
    assert done.stdout.split()[1] == str(os.environ.get("OPENBLAS_NUM_THREADS"))


def test_flower_starts_apps_in_the_way_that_is_replaced(monkeypatch):
    """A list of words for `subprocess.Popen`, with no options: other ways would work, and take more memory."""
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda words, **options: started.append((words, options)))
    spec = ExecutionSpec(
        task_type=TaskType.CLIENT_APP,
        runtime_api_address="127.0.0.1:1",
        token="secret",
        insecure=True,
        root_certificates_path=None,
        runtime_dependency_install=False,
        parent_pid=1,
        suppress_output=TaskType.CLIENT_APP not in AutoExecPlugin.visible_output_task_types,
        task_id=1,
        fab_hash=None,
    )
    SubprocessExecutor().launch(spec)
    ((words, options),) = started
    assert words[0] == "flwr-clientapp"
    assert not options


def test_training_a_small_model_imports_nothing_of_pytorchs_compiler():
    """Tracing a model without its values does, and so does `to_empty`: 100 MB that a device need not have."""
    script = (
        "import sys\n"
        "from fedwidth.deployment.node.training import trainer_of\n"
        f"trainer = trainer_of({RECIPE!r}, '', 0)\n"
        "assert all(tensor.is_meta for tensor in trainer.model.parameters())\n"
        "trainer.skeleton(trainer.method.select(trainer.plan, capacity=0.25))\n"
        "print(*sorted({'sympy', 'torch._dynamo', 'torch._inductor'} & set(sys.modules)))\n"
    )
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [], f"after {time.monotonic() - begun:.0f} s"
