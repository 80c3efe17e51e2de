"""Which devices are let in, and what each may claim: a folder with one small file per device.

    enrolled/client-3.json    {"client": 3, "public_key": "ecdsa-sha2-nistp384 AAAA…", "max_capacity": 0.25, …}

The operator writes these files (`deploy add`, `deploy revoke`); the server reads them when a run starts and each time
devices introduce themselves, so that a change needs no new start.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from fedwidth.errors import OptionError, whole_number
from fedwidth.files import write_whole
from fedwidth.flower.printable import printable

MAX_SAMPLES = 1_000_000
PUBLIC_KEY = re.compile(r"ecdsa-sha2-nistp(256|384|521) [A-Za-z0-9+/]+={0,2}", re.ASCII)
"""What OpenSSH writes into a public key's file, without the remark at its end."""


@dataclass(frozen=True)
class Enrolled:
    """A device that is let in: which client it is, its key, and the most it may claim."""

    client: int
    public_key: str
    """As in an OpenSSH file: its kind and the key, nothing else."""
    max_capacity: float = 1.0
    max_samples: int = MAX_SAMPLES

    def __post_init__(self) -> None:
        whole_number("client", self.client)
        whole_number("max_samples", self.max_samples, least=1)
        if not isinstance(self.public_key, str) or not PUBLIC_KEY.fullmatch(self.public_key):
            raise OptionError(f"public_key must be 'ecdsa-sha2-nistp384 AAAA…', not '{printable(self.public_key, 80)}'")
        number = self.max_capacity
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number <= 1:
            raise OptionError(f"max_capacity must be a number above 0 and at most 1, not {printable(number, 80)}")


def read_enrolled(path: Path) -> dict[int, Enrolled]:
    """The devices of a folder by client number, ascending; a file that cannot be trusted is an error, not a gap."""
    if not path.is_dir():
        raise OptionError(f"{path} is no folder of enrolled devices; make one with deploy init")
    found = [device for file in path.glob("client-*.json") if (device := _read(file)) is not None]
    devices = sorted(found, key=lambda device: device.client)
    seen: dict[str, int] = {}
    for device in devices:
        other = seen.setdefault(device.public_key, device.client)
        if other != device.client:
            raise OptionError(f"clients {other} and {device.client} are enrolled with the same key in {path}")
    return {device.client: device for device in devices}


def write_enrolled(path: Path, device: Enrolled) -> None:
    """Let a device in, or change what it may claim."""
    write_whole(file_of(path, device.client), json.dumps(asdict(device), indent=2) + "\n")


def remove_enrolled(path: Path, client: int) -> None:
    """Let a device in no more."""
    file_of(path, client).unlink(missing_ok=True)


def file_of(path: Path, client: int) -> Path:
    """Where a device's facts are."""
    return path / f"client-{client}.json"


def pem_of(public_key: str) -> bytes:
    """A device's public key as Flower sends and keeps it."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

    return load_ssh_public_key(public_key.encode()).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _read(file: Path) -> Enrolled | None:
    """One device; None where it was revoked a moment ago."""
    try:
        facts = json.loads(file.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise OptionError(f"{file} cannot be read: {error}") from None
    known = [part.name for part in fields(Enrolled)]
    if not isinstance(facts, Mapping) or not {"client", "public_key"} <= set(facts) <= set(known):
        raise OptionError(f"{file} must hold client and public_key, and nothing but {', '.join(known)}")
    try:
        device = Enrolled(**facts)
    except OptionError as error:
        raise OptionError(f"{file}: {error}") from None
    if file.name != file_of(file.parent, device.client).name:
        raise OptionError(f"{file} is about client {device.client}: its name must be client-{device.client}.json")
    return device
