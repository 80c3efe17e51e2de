"""What is wrong with a deployment, in clear lines: files, permissions, certificates, keys, versions, the server."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)

from fedwidth.config import read_settings
from fedwidth.errors import FedwidthError
from fedwidth.flower.app_folder import ENVIRONMENT, LINK, PACKAGE, Plan, private_files, read_plan
from fedwidth.flower.keys import hosts_of

SOON = timedelta(days=30)
FLOWER = "1.41."
COMMANDS = ("flwr", "flower-superlink", "flower-supernode", "flower-superexec")


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis; notes say what is so, wrongs what must change."""

    kind: Literal["ok", "note", "wrong"]
    text: str

    def __str__(self) -> str:
        return f"{self.kind:>5}  {self.text}"


def examine(folder: Path, *, online: bool = True) -> list[Finding]:
    """Everything that can be said about a deployment; `OptionError` where the folder is none."""
    plan = read_plan(folder)
    found = [
        *_files(folder, plan),
        *_certificates(folder, plan),
        *_keys(folder, plan),
        *_versions(),
        *_surroundings(plan),
    ]
    found += _recipe(folder, plan)
    return found + list(_server(folder, plan)) if online else found


def _ok(text: str) -> Finding:
    return Finding("ok", text)


def _note(text: str) -> Finding:
    return Finding("note", text)


def _wrong(text: str) -> Finding:
    return Finding("wrong", text)


def _files(folder: Path, plan: Plan) -> Iterator[Finding]:
    wanted = ["superlink.sh", "register.sh", "run.sh", "flower/config.toml", "app/pyproject.toml"]
    wanted += [f"app/{PACKAGE}/{name}" for name in ("client_app.py", "server_app.py", "wire.py", "recipe.toml")]
    wanted += ["certificates/ca.pem", "certificates/server.pem", "certificates/server.key"]
    missing = [name for name in wanted if not (folder / name).is_file()]
    yield from (_wrong(f"{name} is missing") for name in missing)
    if not missing:
        yield _ok(f"{len(wanted)} files are there")
    open_ones = [path for path in private_files(folder, plan.nodes) if path.exists() and path.stat().st_mode & 0o077]
    for path in open_ones:
        mode = stat.S_IMODE(path.stat().st_mode)
        yield _wrong(f"others can read the private {path} (mode {mode:04o}); chmod 600 it")
    if not open_ones:
        yield _ok("private keys are readable by their owner only")


def _certificates(folder: Path, plan: Plan) -> Iterator[Finding]:
    place = folder / "certificates"
    loaded: dict[str, x509.Certificate] = {}
    for name in ("ca.pem", "server.pem"):
        try:
            loaded[name] = x509.load_pem_x509_certificate((place / name).read_bytes())
        except (OSError, ValueError) as error:
            yield _wrong(f"certificates/{name} cannot be read: {error}")
    now = datetime.now(UTC)
    for name, certificate in loaded.items():
        end = certificate.not_valid_after_utc
        if now > end:
            yield _wrong(f"certificates/{name} expired on {end:%Y-%m-%d}; make new ones with deploy init --overwrite")
        elif now < certificate.not_valid_before_utc:
            yield _wrong(f"certificates/{name} is not valid yet: is this machine's clock right ({now:%Y-%m-%d %H:%M})?")
        elif end - now < SOON:
            yield _note(f"certificates/{name} expires in {(end - now).days} days, on {end:%Y-%m-%d}")
        else:
            yield _ok(f"certificates/{name} is valid until {end:%Y-%m-%d}")
    if len(loaded) < 2:
        return
    server = loaded["server.pem"]
    hosts = hosts_of(server)
    for host in dict.fromkeys([plan.address, "127.0.0.1"]):
        if host not in hosts:
            yield _wrong(f"the server's certificate is for {', '.join(sorted(hosts)) or 'no host'}, not for {host}")
    try:
        server.verify_directly_issued_by(loaded["ca.pem"])
    except (InvalidSignature, ValueError, TypeError):
        yield _wrong("certificates/server.pem was not signed by certificates/ca.pem")
    try:
        key = load_pem_private_key((place / "server.key").read_bytes(), None)
        if _public(key) != server.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo):
            yield _wrong("certificates/server.key does not belong to certificates/server.pem")
    except (OSError, ValueError, TypeError) as error:
        yield _wrong(f"certificates/server.key cannot be read: {error}")
    for node in range(plan.nodes):
        copy = folder / "nodes" / f"client-{node}" / "ca.pem"
        if copy.exists() and copy.read_bytes() != (place / "ca.pem").read_bytes():
            yield _wrong(f"{copy} is not the deployment's: that node will refuse the server")


def _keys(folder: Path, plan: Plan) -> Iterator[Finding]:
    seen: dict[bytes, int] = {}
    here = 0
    for node in range(plan.nodes):
        path = folder / "nodes" / f"client-{node}" / "key"
        if not path.exists():
            continue
        here += 1
        try:
            key = load_ssh_private_key(path.read_bytes(), None)
        except (ValueError, TypeError, OSError) as error:
            yield _wrong(f"{path} is no OpenSSH private key: {error}")
            continue
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name not in (
            "secp256r1",
            "secp384r1",
            "secp521r1",
        ):
            yield _wrong(f"{path} must be an ECDSA key; make it with ssh-keygen -t ecdsa -b 384")
            continue
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        written = path.with_name("key.pub")
        if not written.exists() or written.read_bytes().split()[:2] != public.split()[:2]:
            yield _wrong(f"{written} is missing or does not belong to {path}")
        if public in seen:
            yield _wrong(f"clients {seen[public]} and {node} have the same key: only one of them can be connected")
        seen[public] = node
    yield _ok(f"{here} of {plan.nodes} nodes' keys are here (those of devices need not be)")


def _public(key: object) -> bytes:
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("it is no ECDSA key")
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _versions() -> Iterator[Finding]:
    for package, wanted in (("flwr", FLOWER), ("cryptography", ""), ("torch", ""), ("fedwidth", "")):
        try:
            found = version(package)
        except PackageNotFoundError:
            yield _wrong(f"{package} is not installed; pip install 'fedwidth[flower]'")
            continue
        good = found.startswith(wanted)
        yield _ok(f"{package} {found}") if good else _wrong(f"{package} is {found}, but this app needs {wanted}x")
    bin_folder = Path(sys.executable).parent
    for command in COMMANDS:
        if shutil.which(command) is None:
            there = f"; it is in {bin_folder}" if (bin_folder / command).exists() else ""
            yield _wrong(f"the command {command} is not in PATH, which the scripts need{there}")


def _surroundings(plan: Plan) -> Iterator[Finding]:
    for name, value in ENVIRONMENT.items():
        if os.environ.get(name, value) != value:
            yield _note(f"{name} is {os.environ[name]} here; the scripts set it to {value}")
    bypass = os.environ.get("NO_PROXY", os.environ.get("no_proxy", ""))
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        if os.environ.get(name) and plan.address not in bypass and bypass != "*":
            yield _note(f"{name} is set and NO_PROXY does not name {plan.address}: connections go through the proxy")
            return


def _recipe(folder: Path, plan: Plan) -> Iterator[Finding]:
    path = folder / "app" / PACKAGE / "recipe.toml"
    if not path.exists():
        return
    try:
        settings = read_settings(path).main
    except FedwidthError as error:
        yield _wrong(f"{path}: {error}")
        return
    yield _ok(f"the recipe trains {settings.model.name} with {settings.method.name} for {settings.rounds} rounds")
    if settings.devices.per_round > plan.nodes:
        yield _note(
            f"a round takes {settings.devices.per_round} clients, but there are {plan.nodes} nodes: all of them"
        )


def _server(folder: Path, plan: Plan) -> Iterator[Finding]:
    address = ("127.0.0.1" if _is_here(plan.address) else plan.address, plan.port)
    shown = f"{address[0]}:{address[1]}"
    try:
        context = ssl.create_default_context(cafile=str(folder / "certificates" / "ca.pem"))
        with (
            socket.create_connection(address, timeout=5) as plain,
            context.wrap_socket(plain, server_hostname=plan.address),
        ):
            pass
    except ConnectionRefusedError:
        yield _note(f"nothing listens at {shown}; start ./superlink.sh")
        return
    except ssl.SSLCertVerificationError as error:
        yield _wrong(f"the server at {shown} shows a certificate that is refused: {error.verify_message}")
        return
    except ssl.SSLError as error:
        yield _wrong(f"what listens at {shown} does not speak TLS ({error.reason}): another program, or --insecure?")
        return
    except OSError as error:
        yield _wrong(f"{shown} cannot be reached: {error.strerror or error}; is a firewall between?")
        return
    yield _ok(f"the server at {shown} answers with the deployment's certificate")
    if _is_here(plan.address) or _listens_here(plan.port):
        yield from _registered(folder, plan)


def _registered(folder: Path, plan: Plan) -> Iterator[Finding]:
    """Which nodes the server knows; only its own machine may ask."""
    environment = {**os.environ, **ENVIRONMENT, "FLWR_HOME": str(folder.absolute() / "flower")}
    command = [str(Path(sys.executable).parent / "flwr"), "supernode", "list", LINK, "--format", "json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
        status = [str(node["status"]) for node in json.loads(done.stdout)["nodes"]]
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        yield _note("the server's list of nodes could not be read")
        return
    if len(status) < plan.nodes:
        yield _wrong(f"only {len(status)} of {plan.nodes} nodes' keys are registered; run ./register.sh")
    online = status.count("online")
    yield (_ok if online >= plan.nodes else _note)(f"{online} of {plan.nodes} nodes are online")


def _is_here(address: str) -> bool:
    return address in ("127.0.0.1", "localhost", "::1")


def _listens_here(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
