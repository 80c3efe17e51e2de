"""A complete deployment as a folder: app, certificates, one folder per node, and scripts with the exact commands."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from fedwidth.config import settings_toml
from fedwidth.errors import OptionError
from fedwidth.settings import Settings

MARK = "deployment.json"
"""Facts about the deployment; its presence says that a folder is one."""
LINK = "deployment"
PACKAGE = "fedwidth_app"
LOOPBACK = ("127.0.0.1", "::1", "localhost")
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
}


@dataclass(frozen=True)
class Plan:
    """What `deploy init` was asked for."""

    address: str = "127.0.0.1"
    """Where nodes reach the server: a host name or an address."""
    port: int = 8443
    node_port: int = 9094
    """Port of the first node's own API on its machine; the others count up from it."""
    nodes: int = 4
    capacities: tuple[str, ...] = ()
    """Capacity of each node in turn; none: as the recipe deals them."""
    days: int = 365
    """How long certificates are valid."""


def write_deployment(folder: Path, plan: Plan, settings: Settings, *, overwrite: bool = False) -> None:
    """Write everything; refuses a folder with anything in it, and with `overwrite` one that is no deployment."""
    from fedwidth.flower.keys import make_authority, make_node_key, make_server_certificate

    check_plan(plan, settings)
    _make_room(folder, overwrite)
    folder = folder.absolute()
    for name in (f"app/{PACKAGE}", "certificates", "flower", "state"):
        (folder / name).mkdir(parents=True)
    for name in ("certificates", "flower", "state"):
        (folder / name).chmod(0o700)
    authority = make_authority(folder / "certificates", days=plan.days)
    hosts = list(dict.fromkeys([plan.address, "127.0.0.1", "localhost"]))
    make_server_certificate(folder / "certificates", authority, hosts, days=plan.days)
    _write_app(folder, plan, settings)
    values = _values(folder, plan)
    _write(folder / "flower" / "config.toml", "flower_config.toml", values)
    _write(folder / "README.md", "README.md", values)
    for script in ("superlink.sh", "register.sh", "run.sh"):
        _write(folder / script, script, values, executable=True)
    for node in range(plan.nodes):
        place = folder / "nodes" / f"client-{node}"
        place.mkdir(parents=True)
        place.chmod(0o700)
        make_node_key(place / "key")
        shutil.copy(folder / "certificates" / "ca.pem", place / "ca.pem")
        for name in ("device.py", "reasons.py", "supernode.py", "trainer_process.py"):
            (place / name).write_text(files("fedwidth.flower").joinpath(name).read_text())
        capacity = plan.capacities[node % len(plan.capacities)] if plan.capacities else ""
        stated = f' capacity="{capacity}"' if capacity else ""
        own = {"client": str(node), "stated": stated, "own_port": str(plan.node_port + node)}
        _write(place / "start.sh", "node.sh", values | own, executable=True)
    (folder / MARK).write_text(json.dumps(asdict(plan), indent=2) + "\n")


def check_plan(plan: Plan, settings: Settings) -> None:
    """What can be seen to be wrong before anything is written."""
    from fedwidth.capacity import parse_capacity

    if not 1 <= plan.nodes <= settings.data.clients:
        raise OptionError(f"nodes must be from 1 to the recipe's {settings.data.clients} clients, not {plan.nodes}")
    for name in ("port", "node_port"):
        if not 1 <= getattr(plan, name) <= 65535 - plan.nodes:
            raise OptionError(
                f"{name.replace('_', '-')} must be a port from 1 to {65535 - plan.nodes}, not {getattr(plan, name)}"
            )
    if not plan.address or any(c.isspace() or c in "/\"'$`\\" for c in plan.address):
        raise OptionError(f"address must be a host name or an IP address, not '{plan.address}'")
    if plan.days < 1:
        raise OptionError(f"days must be at least 1, not {plan.days}")
    if len(plan.capacities) > plan.nodes:
        raise OptionError(f"{len(plan.capacities)} capacities were given for {plan.nodes} nodes: give one each at most")
    for capacity in plan.capacities:
        parse_capacity(capacity)


def read_plan(folder: Path) -> Plan:
    """The plan a folder was made from."""
    try:
        facts = json.loads((folder / MARK).read_text())
        return Plan(**{**facts, "capacities": tuple(facts["capacities"])})
    except (OSError, ValueError, TypeError, KeyError):
        raise OptionError(f"{folder} is no deployment: it has no readable {MARK}; make one with deploy init") from None


def _make_room(folder: Path, overwrite: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{folder} is a file; give a folder")
    if folder.is_dir() and any(folder.iterdir()):
        if not overwrite:
            raise OptionError(f"{folder} is not empty; give another folder, or --overwrite to make new keys in it")
        if not (folder / MARK).exists():
            raise OptionError(f"{folder} holds something else than a deployment; --overwrite does not touch it")
        port = read_plan(folder).port
        if _listens(port):
            raise OptionError(f"something listens on port {port}: stop the server before its deployment is overwritten")
        for name in ("app", "certificates", "flower", "nodes", "state"):  # and not `run`, which holds results
            shutil.rmtree(folder / name, ignore_errors=True)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _write_app(folder: Path, plan: Plan, settings: Settings) -> None:
    package = folder / "app" / PACKAGE
    here = files("fedwidth.flower")
    (package / "__init__.py").write_text('"""What Flower sends to every node."""\n')
    (package / "client_app.py").write_text(here.joinpath("node_app.py").read_text())
    (package / "wire.py").write_text(here.joinpath("wire.py").read_text())
    (package / "server_app.py").write_text(here.joinpath("templates", "server_app.py.txt").read_text())
    (package / "recipe.toml").write_text(settings_toml(settings))
    values = {
        "package": PACKAGE,
        "out": json.dumps(str(folder / "run")),
        "wait_for": str(min(settings.devices.per_round, plan.nodes)),
    }
    _write(folder / "app" / "pyproject.toml", "app.toml", values)


def _values(folder: Path, plan: Plan) -> dict[str, str]:
    exports = "\n".join(f"export {name}={value}" for name, value in ENVIRONMENT.items())
    return {
        "folder": str(folder),
        "address": plan.address,
        "port": str(plan.port),
        "host": plan.address if plan.address in LOOPBACK else "0.0.0.0",
        "nodes": str(plan.nodes),
        "last": str(plan.nodes - 1),
        "days": str(plan.days),
        "link": LINK,
        "certificate": json.dumps(str(folder / "certificates" / "ca.pem")),
        "exports": exports,
    }


def _write(path: Path, template: str, values: Mapping[str, str], *, executable: bool = False) -> None:
    text = files("fedwidth.flower").joinpath("templates", template + ".txt").read_text()
    path.write_text(Template(text).substitute(values))
    path.chmod(0o755 if executable else 0o644)


def private_files(folder: Path, nodes: int) -> Sequence[Path]:
    """Files that nobody but their owner may read."""
    certificates = folder / "certificates"
    keys = [folder / "nodes" / f"client-{node}" / "key" for node in range(nodes)]
    return [certificates / "ca.key", certificates / "server.key", *keys]
