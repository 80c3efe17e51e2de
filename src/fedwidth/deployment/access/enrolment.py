"""Which devices are enrolled, and what each may claim: a folder with one small file for each device.

    enrolled/client-3.json    {"client": 3, "public_key": "ecdsa-sha2-nistp384 AAAA…", "max_capacity": 0.25, …}

The operator changes the folder (`deploy add`, `deploy revoke`) while SuperLink and ServerApp run. Both look at the
folder whenever they need it, and read its files again when something has changed: no change needs a restart.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from fedwidth.errors import OptionError, whole_number
from fedwidth.files import write_whole
from fedwidth.printable import printable

MAX_SAMPLES = 1_000_000
"""Most samples that a device may claim, where its enrolment does not say."""
SETTLED_SECONDS = 1.0
"""What changed so lately is read again each time: it may change once more without a newer time of change."""
PUBLIC_KEY = re.compile(r"ecdsa-sha2-nistp(256|384|521) [A-Za-z0-9+/]+={0,2}", re.ASCII)
"""What OpenSSH writes into a public key's file, without the remark at its end."""


@dataclass(frozen=True)
class Enrolled:
    """An enrolled device: which client it is, its key, and the most that it may claim."""

    client: int
    public_key: str
    """The key as an OpenSSH file has it: its kind and the key itself, without the remark."""
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
    """The devices of a folder by client, in ascending order; a file that cannot be trusted is an error, not a gap."""
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


class EnrolmentFolder:
    """The enrolled devices of a folder, whose files are read again only when something has changed.

    `deploy add` and `deploy revoke` change the folder itself, because they replace and remove whole files. With
    `each_file` a file that somebody edits in place is noticed, too, at the price of a look at every file each time.
    """

    def __init__(self, folder: Path, *, each_file: bool = False, clock: Callable[[], float] = time.time) -> None:
        self.folder, self._each_file, self._clock = folder, each_file, clock
        self._seen: tuple[tuple[str, int, int], ...] | None = None
        self._devices: Mapping[int, Enrolled] = {}

    def read(self) -> Mapping[int, Enrolled]:
        """The devices by client: the same object as the last time, unless something has changed."""
        seen = self._look()
        newest = max((changed for _, changed, _ in seen), default=0)
        if seen != self._seen or self._clock() - newest / 1e9 < SETTLED_SECONDS:
            self._seen = None  # after an error the folder is read again, however soon it is mended
            self._devices = read_enrolled(self.folder)
            self._seen = seen
        return self._devices

    def _look(self) -> tuple[tuple[str, int, int], ...]:
        """When the folder, or each of its files, was last changed, and how large they are."""
        paths = [self.folder, *(sorted(self.folder.glob("client-*.json")) if self._each_file else ())]
        found = []
        for path in paths:
            with suppress(OSError):  # it was removed a moment ago
                status = path.stat()
                found.append((path.name, status.st_mtime_ns, status.st_size))
        return tuple(found)


def write_enrolled(path: Path, device: Enrolled) -> None:
    """Enrol a device, or change what it may claim."""
    write_whole(file_of(path, device.client), json.dumps(asdict(device), indent=2) + "\n")


def remove_enrolled(path: Path, client: int) -> None:
    """Strike a device off the enrolled ones."""
    file_of(path, client).unlink(missing_ok=True)


def file_of(path: Path, client: int) -> Path:
    """The file of one device."""
    return path / f"client-{client}.json"


def pem_of(public_key: str) -> bytes:
    """A device's public key in the form in which Flower sends and stores it."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

    return load_ssh_public_key(public_key.encode()).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _read(file: Path) -> Enrolled | None:
    """Read one device's file; None where the device was revoked a moment ago."""
    try:
        facts = json.loads(file.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise OptionError(f"{file} cannot be read: {error}") from None
    known = [field.name for field in fields(Enrolled)]
    if not isinstance(facts, Mapping) or not {"client", "public_key"} <= set(facts) <= set(known):
        raise OptionError(f"{file} must hold client and public_key, and nothing but {', '.join(known)}")
    try:
        device = Enrolled(**facts)
    except OptionError as error:
        raise OptionError(f"{file}: {error}") from None
    if file.name != file_of(file.parent, device.client).name:
        raise OptionError(f"{file} is about client {device.client}: its name must be client-{device.client}.json")
    return device
