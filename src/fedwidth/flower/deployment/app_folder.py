"""A complete deployment as a folder: app, certificates, one folder per node, and scripts with the exact commands."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from string import Template

from fedwidth.config.write import settings_toml
from fedwidth.errors import OptionError
from fedwidth.flower.deployment.plan import MARK, Plan, check_plan, listens, read_plan, with_port
from fedwidth.settings import Settings

LINK = "deployment"
PACKAGE = "fedwidth_app"
OPERATORS, ENROLLED = "certificates/operators.pub", "enrolled"
"""Who may command the server, and which devices are let in."""
PRIVATE = ("certificates", "operator", "enrolled", "flower", "state", "nodes", "run")
"""Folders that nobody but their owner may look into."""
SCRIPTS = ("superlink.sh", "register.sh", "run.sh", "flwr.sh")
COPIED = ("device.py", "enrol.py", "reasons.py", "supernode.py", "trainer_process.py")
"""What runs on a device before fedwidth is imported there."""
AUTHORITY_DAYS = 3650
"""How long an authority is valid at least: devices know it, and the server's certificate is renewed under it."""
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
}


def write_deployment(
    folder: Path, plan: Plan, settings: Settings, *, authority: Path | None = None, overwrite: bool = False
) -> None:
    """Write everything; refuses a folder with anything in it, and with `overwrite` one that is no deployment.

    `authority` is where the key that signs certificates is kept, or is already; none: a folder of its own in this one.
    """
    from fedwidth.flower.access.keys import make_authority, make_operator_key, make_server_certificate, read_authority

    check_plan(plan, settings)
    folder = folder.absolute()
    authority = (authority or folder / "authority").absolute()
    if authority == folder / "certificates":
        raise OptionError("the authority's key must not be beside the server's: give another folder than certificates")
    if (authority / "ca.key").exists():
        read_authority(authority)  # what cannot be used is seen before anything is removed
    _make_room(folder, overwrite)
    (folder / "app" / PACKAGE).mkdir(parents=True)
    for name in (*PRIVATE, authority):
        if not (folder / name).exists():
            (folder / name).mkdir(parents=True, mode=0o700)
            (folder / name).chmod(0o700)
    if not (authority / "ca.key").exists():
        make_authority(authority, days=max(plan.days, AUTHORITY_DAYS))
    shutil.copy(authority / "ca.pem", folder / "certificates" / "ca.pem")
    make_server_certificate(folder / "certificates", read_authority(authority), plan.hosts, days=plan.days)
    operator = make_operator_key(folder / "operator" / "key")
    (folder / OPERATORS).write_text(operator + "\n")
    _write_app(folder, plan, settings)
    values = values_of(folder, plan)
    fill(folder / "flower" / "config.toml", "flower_config.toml", values)
    fill(folder / "README.md", "README.md", values)
    for script in SCRIPTS:
        fill(folder / script, script, values, executable=True)
    for client in range(plan.nodes):
        write_node(folder, plan, client)
    (folder / MARK).write_text(json.dumps(asdict(plan), indent=2) + "\n")


def write_node(folder: Path, plan: Plan, client: int, capacity: str = "") -> Path:
    """The folder that a device is given: how to reach the server and whom to trust. Its key it makes itself."""
    folder = folder.absolute()
    place, here = folder / "nodes" / f"client-{client}", files("fedwidth.flower.node")
    place.mkdir(parents=True)
    place.chmod(0o700)
    shutil.copy(folder / "certificates" / "ca.pem", place / "ca.pem")
    for name in COPIED:
        (place / name).write_text(here.joinpath(name).read_text())
    (place / "operators.yaml").write_text(trusted(folder / OPERATORS))
    capacity = capacity or plan.capacity_of(client)
    stated = f' capacity="{capacity}"' if capacity else ""
    own = {"client": str(client), "stated": stated, "own_port": str(plan.node_port + client)}
    fill(place / "start.sh", "node.sh", values_of(folder, plan) | own, executable=True)
    return place


def trusted(operators: Path) -> str:
    """The operators whose apps a device runs, as Flower's nodes read it (`--trusted-entities`)."""
    from fedwidth.flower.access.operators import read_operators
    from fedwidth.flower.access.signing import name_of, public_line

    return "".join(f"{name_of(key)}: {public_line(key)}\n" for key in read_operators(operators))


def _make_room(folder: Path, overwrite: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{folder} is a file; give a folder")
    if folder.is_dir() and any(folder.iterdir()):
        if not overwrite:
            raise OptionError(f"{folder} is not empty; give another folder, or --overwrite to make new keys in it")
        if not (folder / MARK).exists():
            raise OptionError(f"{folder} holds something else than a deployment; --overwrite does not touch it")
        plan = read_plan(folder)
        if listens(plan):
            raise OptionError(
                f"something listens on port {plan.port}: stop the server before its deployment is overwritten"
            )
        for name in ("app", "authority", *PRIVATE):
            if name != "run":  # which holds results
                shutil.rmtree(folder / name, ignore_errors=True)


def _write_app(folder: Path, plan: Plan, settings: Settings) -> None:
    package = folder / "app" / PACKAGE
    here, templates = files("fedwidth.flower.node"), files("fedwidth.flower.deployment") / "templates"
    (package / "__init__.py").write_text('"""What Flower sends to every node."""\n')
    (package / "client_app.py").write_text(here.joinpath("client_app.py").read_text())
    (package / "wire.py").write_text(here.joinpath("wire.py").read_text())
    (package / "server_app.py").write_text(templates.joinpath("server_app.py.txt").read_text())
    (package / "recipe.toml").write_text(settings_toml(settings))
    values = {
        "package": PACKAGE,
        "out": json.dumps(str(folder / "run")),
        "enrolled": json.dumps(str(folder / ENROLLED)),
        "wait_for": str(min(settings.devices.per_round, plan.nodes)),
    }
    fill(folder / "app" / "pyproject.toml", "app.toml", values)


def values_of(folder: Path, plan: Plan) -> dict[str, str]:
    """What the templates are filled with."""
    exports = "\n".join(f"export {name}={value}" for name, value in ENVIRONMENT.items())
    return {
        "folder": str(folder),
        "server": with_port(plan.address, plan.port),
        "near": with_port(plan.near, plan.port),
        "port": str(plan.port),
        "host": plan.host,
        "nodes": str(plan.nodes),
        "last": str(plan.nodes - 1),
        "days": str(plan.days),
        "link": LINK,
        "operators": OPERATORS,
        "enrolled_folder": ENROLLED,
        "certificate": json.dumps(str(folder / "certificates" / "ca.pem")),
        "exports": exports,
    }


def fill(path: Path, template: str, values: Mapping[str, str], *, executable: bool = False) -> None:
    """Write a file from its template."""
    text = (files("fedwidth.flower.deployment") / "templates" / f"{template}.txt").read_text()
    path.write_text(Template(text).substitute(values))
    path.chmod(0o755 if executable else 0o644)


def private_files(folder: Path) -> Sequence[Path]:
    """Files that nobody but their owner may read."""
    keys = [folder / name for name in ("authority/ca.key", "certificates/server.key", "operator/key")]
    return [*keys, *sorted((folder / "nodes").glob("client-*/key"))]
