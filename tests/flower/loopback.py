"""A real deployment on this machine: SuperLink, SuperNodes, TLS, node keys, each in a process group of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path

from fedwidth.config.read import read_settings
from fedwidth.config.write import settings_toml
from fedwidth.deployment.folder.app_folder import ENVIRONMENT, PACKAGE, write_deployment
from fedwidth.deployment.folder.setup import Setup

BIN = Path(sys.executable).parent


def free_ports(number: int) -> int:
    """The first of so many consecutive ports that nothing listens on."""
    for first in range(21000 + os.getpid() % 4000, 32000, number):
        probes = [socket.socket() for _ in range(number)]
        try:
            for offset, probe in enumerate(probes):
                probe.bind(("127.0.0.1", first + offset))
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
        return first
    raise RuntimeError("no free ports")


class Loopback:
    """One deployment folder and its processes; `close` ends them all."""

    def __init__(
        self, folder: Path, recipe: str, *, nodes: int = 4, capacities: tuple[str, ...] = ("1", "1/4"), days=30
    ):
        self.folder, self.nodes, self.out = folder, nodes, folder / "run"
        first = free_ports(nodes + 2)
        self.setup = Setup(port=first, node_port=first + 1, nodes=nodes, capacities=capacities, days=days)
        write_deployment(folder, self.setup, read_settings(recipe).main)
        from fedwidth.deployment.access.keys import make_node_key  # behind an extra

        for client in range(nodes):  # as its first start does
            make_node_key(folder / "nodes" / f"client-{client}" / "key", f"client-{client}")
        self.processes: dict[str, subprocess.Popen] = {}
        self.environment = {
            **os.environ,
            **ENVIRONMENT,
            "FLWR_HOME": str(folder / "flower"),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }

    def start(self, name: str, *command: str, cwd: Path | None = None) -> subprocess.Popen:
        """Start a process group whose output goes to NAME.log."""
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                command,
                cwd=cwd or self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes[name] = process
        return process

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def superlink(self, *more: str) -> None:
        """Start it and wait until it listens."""
        self.start("superlink", "./superlink.sh", *more)
        wait_until(self._listens, 240, lambda: self.log("superlink"))

    def register(self) -> None:
        """Let the nodes' keys in."""
        done = subprocess.run(["./register.sh"], cwd=self.folder, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def node(
        self, client: int, *, resident: bool = True, through: int = 0, more: str = "", name: str = "", **changes: str
    ) -> subprocess.Popen:
        """Start a device's script; without `resident` the bare SuperNode, as Flower documents it.

        `through` is the port of a proxy before the server.
        """
        device = self.folder / "nodes" / f"client-{client}"
        name = name or f"node-{client}"
        if resident and not more and not changes:
            words = ["--superlink", f"127.0.0.1:{through}"] if through else []
            return self.start(name, "./start.sh", *words, cwd=device)
        capacity = self.setup.capacities[client % len(self.setup.capacities)]
        options = {
            "--root-certificates": "ca.pem",
            "--auth-supernode-private-key": "key",
            "--superlink": f"127.0.0.1:{self.setup.port}",
            "--port": str(self.setup.node_port + client),
            "--node-config": f'client={client} capacity="{capacity}" {more}'.strip(),
            **changes,
        }
        words = [word for pair in options.items() for word in pair if word]
        return self.start(name, str(BIN / "flower-supernode"), *words, cwd=device)

    def begin(self, recipe: str, name: str, *, more: str = "") -> None:
        """Make the app one of this recipe, with a run folder of its own; `more` is added to the client app."""
        package = self.folder / "app" / PACKAGE
        (package / "recipe.toml").write_text(settings_toml(read_settings(recipe).main))
        source = files("fedwidth.deployment.node").joinpath("client_app.py").read_text()
        (package / "client_app.py").write_text(source + more)
        self.out = self.folder / "runs" / name
        self.stop_run()

    def stop_run(self) -> None:
        """End a run that is going on: its ServerApp and the log stream."""
        if "run" in self.processes:
            started = re.search(r"started run (\d+)", self.log("run"))
            if started and self.processes["run"].poll() is None:
                words = ["./flwr.sh", "stop", started[1]]
                subprocess.run(words, cwd=self.folder, env=self.environment, capture_output=True, timeout=240)
            self.kill("run")
        (self.folder / "run.log").unlink(missing_ok=True)

    def run(self, config: str = "") -> subprocess.Popen:
        """Start the run; its log is streamed to run.log."""
        return self.start("run", "./run.sh", "--run-config", f'out="{self.out}" {config}')

    def lines(self) -> list[dict]:
        """Metrics of the rounds that are done."""
        path = self.out / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_rounds(self, rounds: int, seconds: float = 300) -> list[dict]:
        """Wait until so many rounds are done."""
        wait_until(
            lambda: len(self.lines()) >= rounds,
            seconds,
            lambda: self.log("run")[-4000:] + self.log("superlink")[-2000:],
        )
        return self.lines()

    def wait_finished(self, seconds: float = 300) -> dict:
        """Wait for the summary."""
        path = self.out / "summary.json"
        wait_until(path.exists, seconds, lambda: self.log("run")[-4000:] + self.log("superlink")[-2000:])
        return json.loads(path.read_text())

    def state(self) -> dict:
        """The global model of the checkpoint."""
        from safetensors.torch import load_file

        tensors = load_file(self.out / "checkpoint.safetensors")
        return {name.removeprefix("state."): t for name, t in tensors.items() if name.startswith("state.")}

    def kill(self, name: str) -> None:
        """SIGKILL for the whole group."""
        process = self.processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def family(self, client: int | None = None) -> dict[int, str]:
        """Every process of this deployment, or of one device (Flower puts apps into groups of their own)."""
        home = self.folder if client is None else self.folder / "nodes" / f"client-{client}" / "flower"
        mark, found = f"FLWR_HOME={home}".encode(), {}
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                with suppress(OSError):
                    if any(entry.startswith(mark) for entry in (process / "environ").read_bytes().split(b"\0")):
                        found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def close(self) -> None:
        """End every process."""
        for name in list(self.processes):
            self.kill(name)
        for pid in self.family():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.setup.port)) == 0


class Proxy:
    """Passes bytes on to a port of this machine, as a proxy of the fourth layer does: it knows nothing of TLS.

    Where nobody listens there, it accepts connections all the same and closes them. It counts the bytes that go `up`
    to that port, and those that come `down` from it.
    """

    def __init__(self, port: int) -> None:
        self.up = self.down = 0
        self._counting = threading.Lock()
        self._to, self._listener = port, socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._to), timeout=5)
                far.settimeout(None)
            except OSError:
                near.close()
                continue
            threading.Thread(target=self._join, args=[near, far], daemon=True).start()

    def _join(self, near: socket.socket, far: socket.socket) -> None:
        with near, far:
            back = threading.Thread(target=self._pass_on, args=[far, near, "down"], daemon=True)
            back.start()
            self._pass_on(near, far, "up")
            back.join()

    def _pass_on(self, source: socket.socket, target: socket.socket, way: str) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                with self._counting:
                    setattr(self, way, getattr(self, way) + len(data))
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def wait_until(condition, seconds: float, why=lambda: "") -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s\n{why()}"
        time.sleep(0.25)


@contextmanager
def running(folder: Path, recipe: str, nodes: int) -> Iterator[Loopback]:
    """A deployment whose server and nodes are up, and are ended with it."""
    made = Loopback(folder, recipe)
    try:
        made.superlink()
        made.register()
        for client in range(nodes):
            made.node(client)
        yield made
    finally:
        made.close()
