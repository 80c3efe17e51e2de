"""The roster of a deployment with secure sums: the public keys of its devices, in the app that the operator signs.

    app/fedwidth_app/roster.toml    client-3 = "ecdsa-sha2-nistp384 AAAA…"

Devices hold the keys of a round against it, so a server without the operator's key cannot invent any. It is written
when a run is started: a device that is enrolled later takes part in the next one.
"""

from __future__ import annotations

from pathlib import Path

from fedwidth.config.read import read_settings
from fedwidth.deployment.access.enrolment import read_enrolled
from fedwidth.deployment.folder.app_folder import PACKAGE
from fedwidth.errors import OptionError
from fedwidth.files import write_whole

NAME = "roster.toml"


def write_roster(app: Path, enrolled: str) -> None:
    """Write the roster of those who are enrolled into an app whose recipe has secure sums.

    Where the folder of the enrolled is not on this machine, the roster that the app has already stays.
    """
    path, recipe = app / PACKAGE / NAME, app / PACKAGE / "recipe.toml"
    if not recipe.exists() or not read_settings(recipe).main.secure.enabled:
        path.unlink(missing_ok=True)
        return
    if enrolled and Path(enrolled).is_dir():
        devices = read_enrolled(Path(enrolled))
        write_whole(path, "".join(f'client-{client} = "{own.public_key}"\n' for client, own in devices.items()))
    elif not path.exists():
        raise OptionError(
            f"secure.enabled needs the roster of the devices: {path} is not there, and neither is the folder"
            f" '{enrolled}' of those who are enrolled"
        )
