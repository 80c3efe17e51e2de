"""The Flower app of someone else, changed as docs/flower-strategy.md says, and Flower's own processes to run it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from loopback import BIN, free_ports, wait_until

from fedwidth.deployment.access.keys import make_authority, make_server_certificate
from fedwidth.deployment.folder.app_folder import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[2]
APP, PAGE = ROOT / "examples" / "flower_app", ROOT / "docs" / "flower-strategy.md"
TITLED = re.compile(r'^```python title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def changed_files() -> dict[str, str]:
    """The files of the app that the page shows, by their paths."""
    return {found[1]: found[2] for found in TITLED.finditer(PAGE.read_text(encoding="utf-8"))}


def write_app(folder: Path, *, changed: bool = True, config: str = "") -> Path:
    """The app in a folder of its own, as it was or as the page changes it; `config` is added to its run config."""
    app = Path(shutil.copytree(APP, folder / "app", ignore=shutil.ignore_patterns("__pycache__")))
    if changed:
        for path, text in changed_files().items():
            assert (app / path).exists(), f"the page changes {path}, which the app has not"
            (app / path).write_text(text)
    with open(app / "pyproject.toml", "a") as project:
        project.write(config)
    return app


class Flower:
    """Flower's processes as its documentation starts them: no guard, no trainer, nothing of fedwidth's deployment."""

    def __init__(self, folder: Path, *, nodes: int, simulated: bool) -> None:
        self.folder, self.nodes, self.simulated = folder, nodes, simulated
        self.port = free_ports(nodes + 2)
        self.processes: list[subprocess.Popen] = []
        self.home = folder / "flower"
        self.home.mkdir(parents=True)
        self.environment = {
            **os.environ,
            **ENVIRONMENT,
            "FLWR_HOME": str(self.home),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        address = f'address = "127.0.0.1:{self.port}"'
        if simulated:
            more = f"insecure = true\noptions.num-supernodes = {nodes}\noptions.backend.client-resources.num-cpus = 1"
            words = ["--insecure", "--simulation"]
        else:
            make_server_certificate(folder, make_authority(folder, days=2), ["127.0.0.1"], days=2)
            more = f'root-certificates = "{folder / "ca.pem"}"'
            certificates = {"ca-certfile": "ca.pem", "certfile": "server.pem", "keyfile": "server.key"}
            words = [word for key, file in certificates.items() for word in (f"--ssl-{key}", str(folder / file))]
        (self.home / "config.toml").write_text(f'[superlink]\ndefault = "here"\n[superlink.here]\n{address}\n{more}\n')
        words += ["--host", "127.0.0.1", "--port", str(self.port), "--isolation", "subprocess"]
        self._start("superlink", "flower-superlink", *words)
        wait_until(self._listens, 240, lambda: self.log("superlink"))

    def start_nodes(self, capacities: tuple[str, ...]) -> None:
        """SuperNodes that state their capacities, over TLS."""
        for number in range(self.nodes):
            capacity = capacities[number % len(capacities)]
            self._start(
                f"node-{number}",
                "flower-supernode",
                *("--root-certificates", str(self.folder / "ca.pem"), "--superlink", f"127.0.0.1:{self.port}"),
                *("--port", str(self.port + 1 + number)),
                *("--node-config", f'partition-id={number} num-partitions={self.nodes} capacity="{capacity}"'),
            )

    def run(self, app: Path, seconds: float = 420) -> str:
        """`flwr run`, and what it printed; it fails with the logs where the run does."""
        words = [str(BIN / "flwr"), "run", str(app), "here", "--stream"]
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=seconds)
        said = done.stdout + done.stderr
        assert done.returncode == 0, said + self.log("superlink")
        return said

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-6000:]

    def close(self) -> None:
        """End every process that was started here, and what these have started."""
        mark = f"FLWR_HOME={self.home}".encode()
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for process in Path("/proc").iterdir():
            if process.name.isdigit() and int(process.name) != os.getpid():
                with suppress(OSError):
                    if mark in (process / "environ").read_bytes().split(b"\0"):
                        os.kill(int(process.name), signal.SIGKILL)

    def _start(self, name: str, program: str, *words: str) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            made = subprocess.Popen(
                [str(BIN / program), *words],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(made)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def accuracies(said: str) -> list[float]:
    """The global model's accuracy at the start and after each round, as Flower's log has it."""
    return [float(found) for found in re.findall(r"'accuracy': ([0-9.e-]+)", said)]
