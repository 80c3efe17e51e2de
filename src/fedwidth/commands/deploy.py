"""Commands for real devices: deploy init, deploy doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedwidth.commands.rollback import rollback
from fedwidth.commands.run import Set
from fedwidth.errors import OptionError

app = typer.Typer(help="Train on real devices with Flower: set up a deployment, and see what is wrong with one.")

app.command("rollback")(rollback)

Folder = Annotated[Path, typer.Argument(help="Folder of the deployment.")]


@app.command("init")
def init(
    folder: Folder,
    recipe: Annotated[
        str, typer.Option("--recipe", help="A TOML file or a packaged recipe; none: the quick start.")
    ] = "",
    changes: Set = None,
    address: Annotated[str, typer.Option("--address", help="Where devices reach the server.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="The server's port.")] = 8443,
    node_port: Annotated[int, typer.Option("--node-port", help="First port that nodes use on their own.")] = 9094,
    nodes: Annotated[int, typer.Option("--nodes", help="Number of devices: clients 0, 1, …")] = 4,
    capacities: Annotated[
        str, typer.Option("--capacities", help="Capacity of each device in turn, e.g. 1,1/4; none: by recipe.")
    ] = "",
    days: Annotated[int, typer.Option("--days", help="How long certificates are valid.")] = 365,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a deployment, its keys included.")] = False,
) -> None:
    """Write a complete app folder: recipe, certificates, a key for each device, and scripts with the exact commands."""
    _need_flower()
    from fedwidth.config import read_settings
    from fedwidth.flower.app_folder import Plan, write_deployment

    settings = read_settings(recipe or "quickstart", changes or []).main
    wanted = tuple(part.strip() for part in capacities.split(",") if part.strip())
    plan = Plan(address, port, node_port, nodes, wanted, days)
    write_deployment(folder, plan, settings, overwrite=overwrite)
    print(f"wrote {folder}: read {folder / 'README.md'}, and check it with fedwidth deploy doctor {folder}")


@app.command("doctor")
def doctor(
    folder: Folder,
    offline: Annotated[bool, typer.Option("--offline", help="Do not contact the server.")] = False,
) -> int:
    """Check a deployment and say what is wrong with it. Exit code 0: nothing is."""
    _need_flower()
    from fedwidth.flower.doctor import examine

    found = examine(folder, online=not offline)
    for finding in found:
        print(finding)
    wrong = sum(finding.kind == "wrong" for finding in found)
    print(f"{wrong} thing{'s' * (wrong != 1)} to put right" if wrong else "nothing is wrong")
    return int(wrong > 0)


def _need_flower() -> None:
    from importlib.util import find_spec

    from fedwidth.flower.versions import check_flower

    check_flower()
    if find_spec("cryptography") is None:
        raise OptionError("cryptography is not installed; pip install 'fedwidth[flower]'")
