"""Makes a device's key on the device: `python enrol.py CLIENT`, what `start.sh` calls where there is none.

`key` never leaves the device; `key.pub` is what the server's operator is sent, who lets it in with `deploy add`.
Copied into the nodes' folders, so it needs the standard library and cryptography only.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat


def make_node_key(path: Path, remark: str = "") -> None:
    """A node's key pair as OpenSSH writes it: `path` and `path`.pub (ECDSA P-384, what Flower takes)."""
    key = generate_private_key(SECP384R1())
    write_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    path.with_name(path.name + ".pub").write_text(f"{public} {remark}".strip() + "\n")


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from its first moment on."""
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
