"""What a device refuses to do for a server that it is connected to.

It is copied into app folders beside `client_app.py`, so it imports the standard library only. Which servers a device
trusts at all is in `connection.py`, how large messages may be in `wire.py`.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def check_client(asked: Any, own: Any) -> None:
    """Refuse to train for another client: its number decides which data is used."""
    if asked != own:
        raise ValueError(f"this is client {own}, not {asked}")


def check_load(load: str, project: Path) -> None:
    """Refuse to load data by a function that the signed app does not name.

    The server chooses a run's settings, but the operator has signed the app, with its pyproject.toml (`project`).
    """
    if not project.exists():
        return
    signed = tomllib.loads(project.read_text())["tool"]["flwr"]["app"].get("config", {}).get("load", "")
    if load != signed:
        raise ValueError(
            f"the run wants to load data by {load!r}, but the app names {signed!r}: change app/pyproject.toml"
        )
