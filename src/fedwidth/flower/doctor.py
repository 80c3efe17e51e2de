"""What is wrong with a deployment, in clear lines: files, versions, recipe, certificates, keys, the server."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fedwidth.config import read_settings
from fedwidth.errors import FedwidthError
from fedwidth.flower.app_folder import ENVIRONMENT, PACKAGE, Plan, private_files, read_plan
from fedwidth.flower.check_keys import check_certificates, check_node_keys
from fedwidth.flower.check_server import check_server
from fedwidth.flower.findings import Finding, note, ok, wrong
from fedwidth.flower.versions import FLOWERS

COMMANDS = ("flwr", "flower-superlink", "flower-supernode", "flower-superexec")

__all__ = ["Finding", "examine"]


def examine(folder: Path, *, online: bool = True) -> list[Finding]:
    """Everything that can be said about a deployment; `OptionError` where the folder is none."""
    plan = read_plan(folder)
    found = [
        *_files(folder, plan),
        *check_certificates(folder, plan),
        *check_node_keys(folder, plan),
        *_versions(),
        *_surroundings(plan),
        *_recipe(folder, plan),
    ]
    return found + list(check_server(folder, plan)) if online else found


def _files(folder: Path, plan: Plan) -> Iterator[Finding]:
    wanted = ["superlink.sh", "register.sh", "run.sh", "flower/config.toml", "app/pyproject.toml"]
    wanted += [f"app/{PACKAGE}/{name}" for name in ("client_app.py", "server_app.py", "wire.py", "recipe.toml")]
    wanted += ["certificates/ca.pem", "certificates/server.pem", "certificates/server.key"]
    missing = [name for name in wanted if not (folder / name).is_file()]
    yield from (wrong(f"{name} is missing") for name in missing)
    if not missing:
        yield ok(f"{len(wanted)} files are there")
    open_ones = [path for path in private_files(folder, plan.nodes) if path.exists() and path.stat().st_mode & 0o077]
    for path in open_ones:
        mode = stat.S_IMODE(path.stat().st_mode)
        yield wrong(f"others can read the private {path} (mode {mode:04o}); chmod 600 it")
    if not open_ones:
        yield ok("private keys are readable by their owner only")


def _versions() -> Iterator[Finding]:
    flowers = tuple(f"{flower}." for flower in FLOWERS)
    for package, wanted in (("flwr", flowers), ("cryptography", ("",)), ("torch", ("",)), ("fedwidth", ("",))):
        try:
            found = version(package)
        except PackageNotFoundError:
            yield wrong(f"{package} is not installed; pip install 'fedwidth[flower]'")
            continue
        good = found.startswith(wanted)
        needed = " or ".join(f"{start}x" for start in wanted)
        yield ok(f"{package} {found}") if good else wrong(f"{package} is {found}, but this app needs {needed}")
    bin_folder = Path(sys.executable).parent
    for command in COMMANDS:
        if shutil.which(command) is None:
            there = f"; it is in {bin_folder}" if (bin_folder / command).exists() else ""
            yield wrong(f"the command {command} is not in PATH, which the scripts need{there}")


def _surroundings(plan: Plan) -> Iterator[Finding]:
    for name, value in ENVIRONMENT.items():
        if os.environ.get(name, value) != value:
            yield note(f"{name} is {os.environ[name]} here; the scripts set it to {value}")
    bypass = os.environ.get("NO_PROXY", os.environ.get("no_proxy", ""))
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        if os.environ.get(name) and plan.address not in bypass and bypass != "*":
            yield note(f"{name} is set and NO_PROXY does not name {plan.address}: connections go through the proxy")
            return


def _recipe(folder: Path, plan: Plan) -> Iterator[Finding]:
    path = folder / "app" / PACKAGE / "recipe.toml"
    if not path.exists():
        return
    try:
        settings = read_settings(path).main
    except FedwidthError as error:
        yield wrong(f"{path}: {error}")
        return
    yield ok(f"the recipe trains {settings.model.name} with {settings.method.name} for {settings.rounds} rounds")
    if settings.devices.per_round > plan.nodes:
        yield note(f"a round takes {settings.devices.per_round} clients, but there are {plan.nodes} nodes: all of them")
