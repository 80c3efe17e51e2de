"""Examines a deployment and says in clear lines what is wrong: files, versions, recipe, certificates, keys, server."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fedwidth.config.read import read_settings
from fedwidth.data import load
from fedwidth.deployment.folder.app_folder import (
    ENVIRONMENT,
    IN_APPS,
    OPERATORS,
    PACKAGE,
    PRIVATE,
    SCRIPTS,
    private_files,
)
from fedwidth.deployment.folder.check_keys import check_certificates, check_devices, check_operators
from fedwidth.deployment.folder.check_server import check_server
from fedwidth.deployment.folder.findings import Finding, note, ok, wrong
from fedwidth.deployment.folder.setup import Setup, read_setup
from fedwidth.deployment.versions import FLOWERS
from fedwidth.errors import FedwidthError
from fedwidth.settings import Settings

COMMANDS = ("flwr", "flower-superlink", "flower-supernode", "flower-superexec")
"""The commands of Flower's that the scripts need in PATH."""

__all__ = ["Finding", "examine"]


def examine(folder: Path, *, online: bool = True) -> list[Finding]:
    """Examine the deployment in a folder; `OptionError` where the folder holds none."""
    setup = read_setup(folder)
    found = [
        *_files(folder),
        *check_certificates(folder, setup),
        *check_operators(folder),
        *check_devices(folder, setup),
        *_versions(),
        *_surroundings(setup),
        *_recipe(folder, setup),
    ]
    return found + list(check_server(folder, setup)) if online else found


def _files(folder: Path) -> Iterator[Finding]:
    wanted = [*SCRIPTS, "flower/config.toml", "app/pyproject.toml"]
    wanted += [f"app/{PACKAGE}/{name}" for name in (*IN_APPS, "server_app.py", "recipe.toml")]
    wanted += ["certificates/ca.pem", "certificates/server.pem", "certificates/server.key", OPERATORS]
    missing = [name for name in wanted if not (folder / name).is_file()]
    yield from (wrong(f"{name} is missing") for name in missing)
    if not missing:
        yield ok(f"{len(wanted)} files are there")
    private = [*private_files(folder), *(folder / name for name in PRIVATE)]
    open_ones = [path for path in private if path.exists() and path.stat().st_mode & 0o077]
    for path in open_ones:
        mode = stat.S_IMODE(path.stat().st_mode)
        allowed = "700" if path.is_dir() else "600"
        yield wrong(f"others can read the private {path} (mode {mode:04o}); chmod {allowed} it")
    if not open_ones:
        yield ok("private keys and results are readable by their owner only")


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


def _surroundings(setup: Setup) -> Iterator[Finding]:
    for name, value in ENVIRONMENT.items():
        if os.environ.get(name, value) != value:
            yield note(f"{name} is {os.environ[name]} here; the scripts set it to {value}")
    bypass = os.environ.get("NO_PROXY", os.environ.get("no_proxy", ""))
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        if os.environ.get(name) and setup.address not in bypass and bypass != "*":
            yield note(f"{name} is set and NO_PROXY does not name {setup.address}: connections go through the proxy")
            return


def _recipe(folder: Path, setup: Setup) -> Iterator[Finding]:
    path = folder / "app" / PACKAGE / "recipe.toml"
    if not path.exists():
        return
    try:
        settings = read_settings(path).main
    except FedwidthError as error:
        yield wrong(f"{path}: {error}")
        return
    yield ok(f"the recipe trains {settings.model.name} with {settings.method.name} for {settings.rounds} rounds")
    yield from _data(folder, settings)
    if settings.devices.per_round > setup.nodes:
        yield note(
            f"a round takes {settings.devices.per_round} clients, but there are {setup.nodes} nodes: all of them"
        )
    if settings.secure.enabled:
        needed, clients = settings.secure.min_clients, min(settings.devices.per_round, setup.nodes)
        told = f"secure sums open what {needed} devices hold, and a round has {clients}"
        yield ok(told) if clients >= needed else wrong(f"{told}: nothing is ever opened")


def _data(folder: Path, settings: Settings) -> Iterator[Finding]:
    """Check whether this machine has the data that the recipe trains and tests with."""
    try:
        own = tomllib.loads((folder / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]["load"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        yield wrong(f"app/pyproject.toml cannot be read: {error}")
        return
    if own:
        yield note(f"the data is {own}'s; whether a device has it, only the device knows")
        return
    try:
        load(settings.data.name, settings.data.root or None, download=False, **settings.data.options)
    except FedwidthError as error:
        yield wrong(f"{error}; the server needs it to test, and every device to train")
    else:
        yield ok(f"the data {settings.data.name} is on this machine; every device needs it too")
