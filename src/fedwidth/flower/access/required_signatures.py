"""Has a SuperLink ask for proof, and hands its own processes the key with which they give it."""

from __future__ import annotations

import base64
import os
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedwidth.errors import OptionError
from fedwidth.flower.access.enrolment import read_enrolled
from fedwidth.flower.access.operators import Operators, read_operators, sign_apps_with
from fedwidth.flower.access.signing import RUNTIME_KEY, command

PROCESSES = ("flower-superexec", "flwr-serverapp")
"""What Flower starts on the server, by the name under which it looks for them in $PATH."""
UNGUARDED = ("FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API")
"""With these, Flower would open ports beside the one that is guarded."""


def require_proof(operators: Path, enrolled: Path) -> Callable[[Any], None]:
    """What to call with Flower's application; from now on this process starts Flower's others with a key."""
    try:
        read_operators(operators)
        read_enrolled(enrolled)
    except OptionError as error:
        raise SystemExit(f"error: {error}") from None
    for name in UNGUARDED:
        os.environ.pop(name, None)
    key, apps = Ed25519PrivateKey.generate(), dict[str, dict[str, str]]()
    os.environ[RUNTIME_KEY] = base64.b64encode(key.private_bytes_raw()).decode()
    os.environ["PATH"] = f"{_commands()}:{os.environ.get('PATH', os.defpath)}"
    sign_apps_with(apps)

    def configure(app: Any) -> None:
        app.add_middleware(Operators, operators=operators, enrolled=enrolled, runtime=key.public_key(), apps=apps)

    return configure


def _commands() -> str:
    """A folder with Flower's commands under their own names, as they sign their requests."""
    place = Path(os.environ.get("FLWR_HOME") or tempfile.mkdtemp(prefix="fedwidth-")).absolute() / "commands"
    place.mkdir(parents=True, exist_ok=True)
    place.chmod(0o700)
    for name in PROCESSES:
        path = place / name
        path.write_text(f'#!/bin/sh\nexec {shlex.join(command(name))} "$@"\n')
        path.chmod(0o700)
    return str(place)
