"""Makes a device's key on the device: `python device_key.py CLIENT`, which `start.sh` calls where there is none.

The private half, `key`, never leaves the device. The public half, `key.pub`, is sent to the server's operator, who
enrols the device by it (`deploy add`). This file is copied into the devices' folders, so it imports the standard
library and cryptography only.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat


def make_node_key(path: Path, remark: str = "") -> None:
    """Make a device's key pair as OpenSSH does: `path` and `path`.pub (ECDSA P-384, which Flower takes)."""
    key = generate_private_key(SECP384R1())
    write_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    path.with_name(path.name + ".pub").write_text(f"{public} {remark}".strip() + "\n")


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, at every moment."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def main() -> None:
    """Make the key of the client that the command line names, in the present folder."""
    if len(sys.argv) != 2 or not sys.argv[1].isdigit():
        raise SystemExit("error: give the number of this device's client")
    if Path("key").exists():
        raise SystemExit("error: this device has a key; remove it and key.pub to make another, and enrol that one")
    make_node_key(Path("key"), f"client-{sys.argv[1]}")
    print(
        f"made this device's key; its operator lets it in with: fedwidth deploy add FOLDER {Path('key.pub').absolute()}"
    )


if __name__ == "__main__":
    main()
