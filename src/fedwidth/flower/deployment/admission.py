"""Lets devices in and out of a deployment, one at a time, whether its server runs or not."""

from __future__ import annotations

import time
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from fedwidth.config.read import read_settings
from fedwidth.errors import OptionError
from fedwidth.files import write_whole
from fedwidth.flower.access.enrolment import MAX_SAMPLES, Enrolled, read_enrolled, remove_enrolled, write_enrolled
from fedwidth.flower.deployment.app_folder import ENROLLED, PACKAGE
from fedwidth.flower.deployment.plan import Plan
from fedwidth.flower.printable import printable

REVOKED = "revoked.pub"
"""Keys that were let in once and never will be again: whoever has such a device has its key."""
MAX_BYTES = 10_000


class Revoked(OptionError):
    """A key that was let in once, and stays out."""


def add(
    folder: Path,
    plan: Plan,
    request: Path,
    *,
    client: int | None = None,
    max_capacity: float | None = None,
    max_samples: int | None = None,
) -> str:
    """Enrol the device whose public key is in a file; what was done, in a line."""
    from fedwidth.devices.capacity import parse_capacity

    key, remark = read_request(request)
    client = _client(remark, request) if client is None else client
    clients = read_settings(folder / "app" / PACKAGE / "recipe.toml").main.data.clients
    if not 0 <= client < clients:
        raise OptionError(f"the recipe's clients are numbered 0 to {clients - 1}, and {client} is none of them")
    place = folder / ENROLLED
    there = read_enrolled(place)
    for other in there.values():
        if other.public_key == key and other.client != client:
            raise OptionError(f"the key of {request} is enrolled already, as client {other.client}")
    before = there.get(client)
    if before is not None and before.public_key != key:
        raise OptionError(f"client {client} is enrolled with another key; deploy revoke {folder} {client} first")
    if key in revoked(place):
        raise Revoked(f"the key of {request} was revoked; remove key and key.pub on the device, it makes others")
    planned = plan.capacity_of(client)
    usual = before or Enrolled(client, key, parse_capacity(planned) if planned else 1.0, MAX_SAMPLES)
    device = Enrolled(
        client,
        key,
        usual.max_capacity if max_capacity is None else max_capacity,
        usual.max_samples if max_samples is None else max_samples,
    )
    if device == before:
        return f"client-{client} is enrolled already"
    write_enrolled(place, device)
    limits = f"capacity at most {device.max_capacity:g}, samples at most {device.max_samples}"
    return f"client-{client} is enrolled: {limits}"


def revoke(folder: Path, client: int) -> str:
    """Let a device in no more; what was done, in a line."""
    place = folder / ENROLLED
    there = read_enrolled(place)
    if client not in there:
        listed = ", ".join(map(str, there)) or "none"
        raise OptionError(f"client {client} is not enrolled; enrolled clients: {listed}")
    # First the note, so that a crash between the two cannot let the key in again.
    lines = [f"{key} {rest}".rstrip() for key, rest in revoked(place).items()]
    lines.append(f"{there[client].public_key} client-{client} {time.strftime('%Y-%m-%d')}")
    write_whole(place / REVOKED, "\n".join(lines) + "\n")
    remove_enrolled(place, client)
    return f"client-{client} is revoked: the server refuses its key from now on"


def revoked(place: Path) -> dict[str, str]:
    """Keys that were revoked, each with the remark about it."""
    path = place / REVOKED
    lines = path.read_text().splitlines() if path.exists() else []
    words = [line.split(maxsplit=2) for line in lines if line.strip()]
    return {" ".join(parts[:2]): " ".join(parts[2:]) for parts in words}


def read_request(path: Path) -> tuple[str, str]:
    """A device's public key and the remark in its file (`client-3`), checked: it comes from outside."""
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


def _client(remark: str, request: Path) -> int:
    """The client that a key says it is of."""
    kind, _, number = remark.partition("-")
    if kind != "client" or not (number.isascii() and number.isdigit()) or len(number) > 9:
        raise OptionError(f"{request} does not say which client it is of ({printable(remark)}); give --client N")
    return int(number)
