"""The Ray cluster a run uses: one of its own on this machine, or the one at an address. Ray is imported here alone."""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen
from typing import Any

from fedwidth.engines.choice import count_cores
from fedwidth.engines.ray.watcher import start_watcher, stop_watcher
from fedwidth.engines.ray.worker import Worker
from fedwidth.errors import OptionError
from fedwidth.settings import Settings


class Cluster:
    """A connection to Ray, and how many workers of the wanted size it has room for."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._watcher: Popen[bytes] | None = None
        with _signals_kept():
            self.ray = _import_ray()
            self._ours = not self.ray.is_initialized()
            if self._ours:
                self._connect(settings.ray.address)

    def close(self) -> None:
        """Leave the cluster; one that was started for the run ends."""
        if self._watcher is not None:
            stop_watcher(self._watcher)
        if self._ours:
            with _signals_kept():
                self.ray.shutdown()

    def start(self) -> Any:
        """Ray's handle of a new worker, which may have to wait until a node has room for it."""
        wanted = self.settings.ray
        # Restarts are not left to Ray: an actor that waits for room keeps its work, though others could do it.
        options = {"num_cpus": wanted.cpus, "num_gpus": wanted.gpus, "max_restarts": 0, "max_task_retries": 0}
        return self.ray.remote(Worker).options(**options, scheduling_strategy="SPREAD").remote()

    def room(self) -> int:
        """The number of workers that fit on the nodes there are now."""
        wanted = self.settings.ray
        return sum(count_fitting(node["Resources"], wanted.cpus, wanted.gpus) for node in self._nodes())

    def wanted(self) -> int:
        """The number of workers that the run should have now: as set, or as many as fit, and no more than clients."""
        return min(self.settings.workers or self.room(), self.settings.devices.per_round)

    def check_room(self) -> None:
        """Refuse a worker that no node could ever hold."""
        if not self.room():
            wanted, nodes = self.settings.ray, self._nodes()
            most = {kind: max((n["Resources"].get(kind, 0) for n in nodes), default=0) for kind in ("CPU", "GPU")}
            raise OptionError(
                f"a worker of ray.cpus = {wanted.cpus:g} and ray.gpus = {wanted.gpus:g} fits on no node of the cluster:"
                f" the largest have {most['CPU']:g} CPUs and {most['GPU']:g} GPUs"
            )

    def check_store(self, bytes: int) -> None:
        """Warn where the data set does not fit the object store of some node."""
        least = min((node["Resources"].get("object_store_memory", math.inf) for node in self._nodes()), default=0)
        if bytes > least:
            warnings.warn(
                f"the data set has {bytes / 2**30:.1f} GiB, Ray's object store on a node only {least / 2**30:.1f} GiB:"
                " Ray will keep it on that node's disk, which is slower (see `ray start --object-store-memory`)",
                stacklevel=2,
            )

    def _nodes(self) -> list[dict[str, Any]]:
        """The nodes that are alive, as Ray describes them."""
        return [node for node in self.ray.nodes() if node["Alive"]]

    def _connect(self, address: str) -> None:
        """Join the cluster at an address, or start one on this machine where there is none."""
        if not address:
            needed = math.ceil(self.settings.workers * self.settings.ray.cpus)
            # "local", or a cluster that ran here before and left its file behind may be waited for.
            with _path_shared(), _loopback_only(), _private_files():
                self.ray.init(
                    address="local",
                    include_dashboard=False,
                    num_cpus=max(count_cores(), needed),
                    logging_level="WARNING",
                )
            node = self.ray._private.worker._global_node
            (raylet,) = node.all_processes[self.ray._private.ray_constants.PROCESS_TYPE_RAYLET]
            self._watcher = start_watcher(raylet.process.pid)
            return
        try:
            _check_reachable(address)
            self.ray.init(address=address, logging_level="WARNING")
        except (OSError, RuntimeError, ValueError, self.ray.exceptions.RayError) as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise OptionError(
                f"no Ray cluster could be joined at ray.address = '{address}' ({first}); if it asks for a token, set"
                " RAY_AUTH_MODE=token here too"
            ) from error


def _check_reachable(address: str) -> None:
    """Raise an error where nobody answers at an address: Ray itself would wait for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and "//" not in host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def count_fitting(resources: dict[str, float], cpus: float, gpus: float) -> int:
    """The number of workers of this size that a node with these resources holds.

    >>> count_fitting({"CPU": 16.0, "GPU": 1.0}, cpus=1.0, gpus=0.25)
    4
    """
    fits = [resources.get(kind, 0.0) / share for kind, share in (("CPU", cpus), ("GPU", gpus)) if share]
    return math.floor(min(fits) + 1e-9)


def _import_ray() -> Any:
    """The module `ray`, or an error that says how to install it."""
    # Ray asks on its first start whether it may report usage; a library does not answer for its user.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise OptionError("engine = 'ray' needs the package ray: pip install 'fedwidth[ray]'") from error
    return ray


@contextmanager
def _path_shared() -> Iterator[None]:
    """Let processes started here find the same modules as this one: a model may come from beside the user's script."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(part or os.getcwd() for part in sys.path)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@contextmanager
def _loopback_only() -> Iterator[None]:
    """Let a cluster that is started here listen on this machine alone.

    Ray takes `127.0.0.1` for "find an address that others can reach", unless it is told that there are no others.
    """
    from ray._private import ray_constants

    name: str = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
    before, others = os.environ.get(name), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[name], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = others
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def _private_files() -> Iterator[None]:
    """Let only its owner read what Ray writes: the token with which work is sent to the cluster, and its logs."""
    with suppress(OSError):
        (Path.home() / ".ray" / "auth_token").chmod(0o600)
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep this process's signal handlers: importing Ray takes over SIGTERM, which asks a run to finish and save."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
