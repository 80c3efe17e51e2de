"""Has the SuperLink take signed requests only, and hands its own processes the key with which they sign theirs."""

from __future__ import annotations

import base64
import os
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedwidth.deployment.access.audit_trail import AuditTrail
from fedwidth.deployment.access.authorisation import Authorisation, read_operators, sign_apps_with
from fedwidth.deployment.access.enrolment import read_enrolled
from fedwidth.deployment.access.signing import RUNTIME_KEY, command
from fedwidth.errors import OptionError

PROCESSES = ("flower-superexec", "flwr-serverapp")
"""The processes that Flower starts on the server, by the names under which it looks for them in $PATH."""
UNGUARDED = ("FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API")
"""Switches with which Flower would open further ports, without a guard."""


def require_signatures(operators: Path, enrolled: Path, audit: AuditTrail | None = None) -> Callable[[Any], None]:
    """A function that adds the check of signatures to Flower's application.

    From now on this process hands the Flower processes that it starts a key of their own.
    """
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
        app.add_middleware(
            Authorisation,
            operators=operators,
            enrolled=enrolled,
            runtime=key.public_key(),
            apps=apps,
            audit=audit,
        )

    return configure


def _commands() -> str:
    """A folder with scripts under the names of Flower's commands, which run them with their requests signed."""
    folder = Path(os.environ.get("FLWR_HOME") or tempfile.mkdtemp(prefix="fedwidth-")).absolute() / "commands"
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    for name in PROCESSES:
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {shlex.join(command(name))} "$@"\n')
        path.chmod(0o700)
    return str(folder)
