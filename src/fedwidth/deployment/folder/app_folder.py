"""Writes a deployment as a folder: app, certificates, a folder for each device, and scripts with the exact commands."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from string import Template

from fedwidth.config.write import settings_toml
from fedwidth.deployment.folder.setup import FACTS, Setup, check_setup, listens, read_setup, with_port
from fedwidth.errors import OptionError
from fedwidth.settings import Settings

LINK = "deployment"
"""The name under which Flower's command line finds the server's address in its config.toml."""
PACKAGE = "fedwidth_app"
"""The Python package in the app folder."""
OPERATORS, ENROLLED = "certificates/operators.pub", "enrolled"
"""The operators who may command the server, and the folder of enrolled devices."""
PRIVATE = ("certificates", "operator", "enrolled", "flower", "state", "nodes", "run")
"""Folders that nobody but their owner may look into."""
UNITS = ("fedwidth-server.service", "fedwidth-metrics.service")
"""Units of systemd for the server's machine; each device's folder has its own."""
SCRIPTS = ("superlink.sh", "register.sh", "run.sh", "flwr.sh")
"""The commands of a deployment, on the server's machine."""
COPIED = (
    "device.py",
    "conditions.py",
    "connection.py",
    "device_key.py",
    "forks.py",
    "supernode.py",
    "trainer_process.py",
)
"""The files of `node/` that are copied into a device's folder, because they run without importing fedwidth."""
IN_APPS = ("client_app.py", "refusals.py", "wire.py")
"""The files of `node/` that are copied into the app, which devices are sent."""
AUTHORITY_DAYS = 3650
"""How long an authority is valid at least: devices know it, and the server's certificate is renewed under it."""
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
}


def write_deployment(
    folder: Path, setup: Setup, settings: Settings, *, authority: Path | None = None, overwrite: bool = False
) -> None:
    """Write a whole deployment; refuses a folder with anything in it, and with `overwrite` one that is no deployment.

    `authority` is the folder of the key that signs certificates, which is made where there is none; by default
    `authority/` in the deployment.
    """
    from fedwidth.deployment.access.keys import (
        make_authority,
        make_operator_key,
        make_server_certificate,
        read_authority,
    )

    check_setup(setup, settings)
    folder = folder.absolute()
    authority = (authority or folder / "authority").absolute()
    if authority == folder / "certificates":
        raise OptionError("the authority's key must not be beside the server's: give another folder than certificates")
    if (authority / "ca.key").exists():
        read_authority(authority)  # what cannot be used is seen before anything is removed
    _clear(folder, overwrite)
    (folder / "app" / PACKAGE).mkdir(parents=True)
    for name in (*PRIVATE, authority):
        if not (folder / name).exists():
            (folder / name).mkdir(parents=True, mode=0o700)
            (folder / name).chmod(0o700)
    if not (authority / "ca.key").exists():
        make_authority(authority, days=max(setup.days, AUTHORITY_DAYS))
    shutil.copy(authority / "ca.pem", folder / "certificates" / "ca.pem")
    make_server_certificate(folder / "certificates", read_authority(authority), setup.hosts, days=setup.days)
    operator = make_operator_key(folder / "operator" / "key")
    (folder / OPERATORS).write_text(operator + "\n")
    _write_app(folder, setup, settings)
    values = template_values(folder, setup)
    fill_template(folder / "flower" / "config.toml", "flower_config.toml", values)
    fill_template(folder / "README.md", "README.md", values)
    for script in SCRIPTS:
        fill_template(folder / script, script, values, executable=True)
    (folder / "systemd").mkdir(exist_ok=True)
    for unit in UNITS:
        fill_template(folder / "systemd" / unit, unit, values)
    for client in range(setup.nodes):
        write_device(folder, setup, client)
    (folder / FACTS).write_text(json.dumps(asdict(setup), indent=2) + "\n")


def write_device(folder: Path, setup: Setup, client: int, capacity: str = "") -> Path:
    """Write the folder that a device is given: how to reach the server and whom to trust. It makes its key itself."""
    folder = folder.absolute()
    device, here = folder / "nodes" / f"client-{client}", files("fedwidth.deployment.node")
    device.mkdir(parents=True)
    device.chmod(0o700)
    shutil.copy(folder / "certificates" / "ca.pem", device / "ca.pem")
    for name in COPIED:
        (device / name).write_text(here.joinpath(name).read_text())
    (device / "operators.yaml").write_text(trusted_entities(folder / OPERATORS))
    capacity = capacity or setup.capacity_of(client)
    stated = f' capacity="{capacity}"' if capacity else ""
    own = {"client": str(client), "stated": stated, "own_port": str(setup.node_port + client)}
    fill_template(device / "start.sh", "node.sh", template_values(folder, setup) | own, executable=True)
    for name in ("fedwidth-device.service", "Containerfile"):
        fill_template(device / name, name, template_values(folder, setup) | own)
    return device


def trusted_entities(operators: Path) -> str:
    """The operators whose apps a device runs, in the form that SuperNodes read (`--trusted-entities`)."""
    from fedwidth.deployment.access.authorisation import read_operators
    from fedwidth.deployment.access.signing import name_of, public_line

    return "".join(f"{name_of(key)}: {public_line(key)}\n" for key in read_operators(operators))


def _clear(folder: Path, overwrite: bool) -> None:
    """Make sure that a deployment can be written to a folder; an earlier one is removed, but for its results."""
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{folder} is a file; give a folder")
    if folder.is_dir() and any(folder.iterdir()):
        if not overwrite:
            raise OptionError(f"{folder} is not empty; give another folder, or --overwrite to make new keys in it")
        if not (folder / FACTS).exists():
            raise OptionError(f"{folder} holds something else than a deployment; --overwrite does not touch it")
        setup = read_setup(folder)
        if listens(setup):
            raise OptionError(
                f"something listens on port {setup.port}: stop the server before its deployment is overwritten"
            )
        for name in ("app", "authority", *PRIVATE):
            if name != "run":  # which holds results
                shutil.rmtree(folder / name, ignore_errors=True)


def _write_app(folder: Path, setup: Setup, settings: Settings) -> None:
    """Write the app that Flower sends to every device."""
    package = folder / "app" / PACKAGE
    here, templates = files("fedwidth.deployment.node"), files("fedwidth.deployment.folder") / "templates"
    (package / "__init__.py").write_text('"""The app that Flower sends to every device."""\n')
    for name in IN_APPS:
        (package / name).write_text(here.joinpath(name).read_text())
    (package / "server_app.py").write_text(templates.joinpath("server_app.py.txt").read_text())
    (package / "recipe.toml").write_text(settings_toml(settings))
    values = {
        "package": PACKAGE,
        "out": json.dumps(str(folder / "run")),
        "enrolled": json.dumps(str(folder / ENROLLED)),
        "wait_for": str(min(settings.devices.per_round, setup.nodes)),
    }
    fill_template(folder / "app" / "pyproject.toml", "app.toml", values)


def template_values(folder: Path, setup: Setup) -> dict[str, str]:
    """The values with which templates are filled."""
    exports = "\n".join(f"export {name}={value}" for name, value in ENVIRONMENT.items())
    return {
        "folder": str(folder),
        "server": with_port(setup.address, setup.port),
        "local": with_port(setup.local_address, setup.port),
        "port": str(setup.port),
        "host": setup.listen_address,
        "nodes": str(setup.nodes),
        "last": str(setup.nodes - 1),
        "days": str(setup.days),
        "link": LINK,
        "operators": OPERATORS,
        "enrolled_folder": ENROLLED,
        "certificate": json.dumps(str(folder / "certificates" / "ca.pem")),
        "exports": exports,
        "programs": str(Path(sys.executable).parent),
        "version": version("fedwidth"),
    }


def fill_template(path: Path, template: str, values: Mapping[str, str], *, executable: bool = False) -> None:
    """Write a file from its template in `templates/`."""
    text = (files("fedwidth.deployment.folder") / "templates" / f"{template}.txt").read_text()
    path.write_text(Template(text).substitute(values))
    path.chmod(0o755 if executable else 0o644)


def private_files(folder: Path) -> Sequence[Path]:
    """The files that nobody but their owner may read."""
    keys = [folder / name for name in ("authority/ca.key", "certificates/server.key", "operator/key")]
    return [*keys, *sorted((folder / "nodes").glob("client-*/key"))]
