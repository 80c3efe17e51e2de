"""Enrols devices in a deployment and revokes them, one at a time, whether its server runs or not."""

from __future__ import annotations

import time
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from fedwidth.config.read import read_settings
from fedwidth.deployment.access.enrolment import MAX_SAMPLES, Enrolled, read_enrolled, remove_enrolled, write_enrolled
from fedwidth.deployment.folder.app_folder import ENROLLED, PACKAGE
from fedwidth.deployment.folder.setup import Setup
from fedwidth.errors import OptionError
from fedwidth.files import write_whole
from fedwidth.printable import printable
from fedwidth.watching.audit import NAME as AUDIT
from fedwidth.watching.audit import AuditLog, fingerprint, operator_of

REVOKED = "revoked.pub"
"""The file of revoked keys, which stay out for ever: whoever has such a device has its key."""
MAX_BYTES = 10_000
"""How much of a public key's file is read."""


class Revoked(OptionError):
    """The key was enrolled once and then revoked, so it stays out."""


def enrol(
    folder: Path,
    setup: Setup,
    public_key: Path,
    *,
    client: int | None = None,
    max_capacity: float | None = None,
    max_samples: int | None = None,
) -> str:
    """Enrol the device whose public key is in a file, or change what it may claim; returns a line about that."""
    from fedwidth.devices.capacity import parse_capacity

    key, remark = read_public_key(public_key)
    client = _client_of(remark, public_key) if client is None else client
    clients = read_settings(folder / "app" / PACKAGE / "recipe.toml").main.data.clients
    if not 0 <= client < clients:
        raise OptionError(f"the recipe's clients are numbered 0 to {clients - 1}, and {client} is none of them")
    there = read_enrolled(folder / ENROLLED)
    for other in there.values():
        if other.public_key == key and other.client != client:
            raise OptionError(f"the key of {public_key} is enrolled already, as client {other.client}")
    before = there.get(client)
    if before is not None and before.public_key != key:
        raise OptionError(f"client {client} is enrolled with another key; deploy revoke {folder} {client} first")
    if key in revoked(folder / ENROLLED):
        raise Revoked(f"the key of {public_key} was revoked; remove key and key.pub on the device, it makes others")
    planned = setup.capacity_of(client)
    usual = before or Enrolled(client, key, parse_capacity(planned) if planned else 1.0, MAX_SAMPLES)
    device = Enrolled(
        client,
        key,
        usual.max_capacity if max_capacity is None else max_capacity,
        usual.max_samples if max_samples is None else max_samples,
    )
    if device == before:
        return f"client-{client} is enrolled already"
    write_enrolled(folder / ENROLLED, device)
    facts = {"client": client, "key": fingerprint(key), "max_capacity": device.max_capacity}
    AuditLog(folder / AUDIT).note(
        "enrolled" if before is None else "enrolment changed", by=operator_of(folder), **facts
    )
    limits = f"capacity at most {device.max_capacity:g}, samples at most {device.max_samples}"
    return f"client-{client} is enrolled: {limits}"


def revoke(folder: Path, client: int) -> str:
    """Revoke a device, whose key stays out for ever; returns a line about that."""
    enrolled = folder / ENROLLED
    there = read_enrolled(enrolled)
    if client not in there:
        listed = ", ".join(map(str, there)) or "none"
        raise OptionError(f"client {client} is not enrolled; enrolled clients: {listed}")
    # First the list of revoked keys, so that after a crash between the two the key cannot be enrolled again.
    lines = [f"{key} {remark}".rstrip() for key, remark in revoked(enrolled).items()]
    lines.append(f"{there[client].public_key} client-{client} {time.strftime('%Y-%m-%d')}")
    write_whole(enrolled / REVOKED, "\n".join(lines) + "\n")
    remove_enrolled(enrolled, client)
    key = fingerprint(there[client].public_key)
    AuditLog(folder / AUDIT).note("revoked", client=client, key=key, by=operator_of(folder))
    return f"client-{client} is revoked: the server refuses its key from now on"


def revoked(enrolled: Path) -> dict[str, str]:
    """The keys that were revoked, each with a remark: which client it was, and when."""
    path = enrolled / REVOKED
    lines = path.read_text().splitlines() if path.exists() else []
    words = [line.split(maxsplit=2) for line in lines if line.strip()]
    return {" ".join(line[:2]): " ".join(line[2:]) for line in words}


def read_public_key(path: Path) -> tuple[str, str]:
    """Read a device's public key and the remark in its file (`client-3`), which come from outside and are checked."""
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES)
        key = load_ssh_public_key(text)
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, UnsupportedAlgorithm):
        raise OptionError(f"{path} is no public key of OpenSSH's kind; give the key.pub that the device made") from None
    if not isinstance(key, EllipticCurvePublicKey):
        raise OptionError(f"{path} must be an ECDSA key; start.sh makes one, and ssh-keygen -t ecdsa -b 384")
    words = text.decode("ascii", errors="replace").split()
    remark = words[2] if len(words) > 2 else ""
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode(), remark


def _client_of(remark: str, public_key: Path) -> int:
    """The client that the remark in a public key's file names."""
    kind, _, number = remark.partition("-")
    if kind != "client" or not (number.isascii() and number.isdigit()) or len(number) > 9:
        raise OptionError(f"{public_key} does not say which client it is of ({printable(remark)}); give --client N")
    return int(number)
