"""Commands for real devices: deploy init, doctor, device, add, revoke, renew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedwidth.cli.options import Set
from fedwidth.cli.rollback import rollback
from fedwidth.cli.watching import audit, metrics
from fedwidth.errors import FedwidthError, OptionError

app = typer.Typer(help="Train on real devices with Flower: set up a deployment, let devices in, see what is wrong.")

app.command("rollback")(rollback)
app.command("metrics")(metrics)
app.command("audit")(audit)

Folder = Annotated[Path, typer.Argument(help="Folder of the deployment.")]
Authority = Annotated[
    Path | None,
    typer.Option("--authority", help="Folder of the key that signs certificates; none: authority/ in the deployment."),
]


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
    days: Annotated[int, typer.Option("--days", help="How long the server's certificate is valid.")] = 365,
    authority: Authority = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a deployment, its keys included.")] = False,
) -> None:
    """Write a complete app folder: recipe, certificates, the operator's key, a folder for each device, and scripts."""
    _need_flower()
    from fedwidth.config.read import read_settings
    from fedwidth.deployment.folder.app_folder import write_deployment
    from fedwidth.deployment.folder.setup import Setup

    settings = read_settings(recipe or "quickstart", changes or [], main=True).main  # a deployment has no other run
    wanted = tuple(part.strip() for part in capacities.split(",") if part.strip())
    setup = Setup(address, port, node_port, nodes, wanted, days)
    write_deployment(folder, setup, settings, authority=authority, overwrite=overwrite)
    print(f"wrote {folder}: read {folder / 'README.md'}, and check it with fedwidth deploy doctor {folder}")


@app.command("doctor")
def doctor(
    folder: Folder,
    offline: Annotated[bool, typer.Option("--offline", help="Do not contact the server.")] = False,
) -> int:
    """Check a deployment and say what is wrong with it. Exit code 0: nothing is."""
    _need_flower()
    from fedwidth.deployment.folder.doctor import examine

    found = examine(folder, online=not offline)
    for finding in found:
        print(finding)
    wrong = sum(finding.kind == "wrong" for finding in found)
    print(f"{wrong} thing{'s' * (wrong != 1)} to put right" if wrong else "nothing is wrong")
    return int(wrong > 0)


@app.command("device")
def device(
    folder: Folder,
    client: Annotated[int, typer.Argument(help="Which client the device will be.", min=0)],
    capacity: Annotated[str, typer.Option("--capacity", help="What it trains, e.g. 1/4; none: by recipe.")] = "",
) -> None:
    """Write the folder of one more device: copy it there, start it, and let the key that it makes in."""
    _need_flower()
    from fedwidth.deployment.folder.app_folder import write_device
    from fedwidth.deployment.folder.setup import read_setup
    from fedwidth.devices.capacity import parse_capacity

    setup = read_setup(folder)
    if capacity:
        parse_capacity(capacity)
    if not setup.node_port + client <= 65535:
        raise OptionError(f"client {client} would need the port {setup.node_port + client}: give a lower --node-port")
    if (folder / "nodes" / f"client-{client}").exists():
        raise OptionError(f"{folder / 'nodes' / f'client-{client}'} is there already")
    written = write_device(folder, setup, client, capacity)
    print(f"wrote {written}: copy it to the device, ./start.sh there, then fedwidth deploy add {folder} KEY.pub")


@app.command("add")
def add(
    folder: Folder,
    requests: Annotated[
        list[Path] | None, typer.Argument(help="Public keys that devices made (key.pub); none: tell the server again.")
    ] = None,
    client: Annotated[
        int | None, typer.Option("--client", help="Which client the key is of; none: as its file says.", min=0)
    ] = None,
    max_capacity: Annotated[
        str, typer.Option("--max-capacity", help="Most that it may train, e.g. 1/4; none: as planned, else all.")
    ] = "",
    max_samples: Annotated[int | None, typer.Option("--max-samples", help="Most samples it may claim.", min=1)] = None,
) -> int:
    """Let devices in by the public keys they made, or change what they may claim; the others are not touched."""
    _need_flower()
    from fedwidth.deployment.folder import admission
    from fedwidth.deployment.folder.setup import read_setup
    from fedwidth.devices.capacity import parse_capacity

    setup, wrong = read_setup(folder), 0
    if client is not None and len(requests or []) != 1:
        raise OptionError("--client names the client of one key: give one")
    most = parse_capacity(max_capacity) if max_capacity else None
    for request in requests or []:
        try:
            print(admission.enrol(folder, setup, request, client=client, max_capacity=most, max_samples=max_samples))
        except FedwidthError as error:
            if len(requests or []) == 1:
                raise
            print(f"left out: {error}")
            wrong += not isinstance(error, admission.Revoked)
    _tell_server(folder)
    return int(wrong > 0)


@app.command("revoke")
def revoke(
    folder: Folder,
    client: Annotated[int, typer.Argument(help="Which client is let in no more.", min=0)],
) -> None:
    """Let a device in no more, at once; the others are not touched."""
    _need_flower()
    from fedwidth.deployment.folder import admission
    from fedwidth.deployment.folder.setup import read_setup

    read_setup(folder)
    print(admission.revoke(folder, client))
    _tell_server(folder)


@app.command("renew")
def renew(
    folder: Folder,
    days: Annotated[int, typer.Option("--days", help="How long the new certificate is valid.", min=1)] = 365,
    authority: Authority = None,
) -> None:
    """Make the server a new key and certificate; devices go on trusting it, because the authority is the same."""
    _need_flower()
    from fedwidth.deployment.folder.renewal import renew_server
    from fedwidth.deployment.folder.setup import read_setup

    setup = read_setup(folder)
    end = renew_server(folder, setup, authority or folder / "authority", days=days)
    print(f"the server's certificate is new, valid until {end:%Y-%m-%d}; start ./superlink.sh again to use it")


def _tell_server(folder: Path) -> None:
    """Register the devices with a server that runs here; where none does, register.sh will."""
    from fedwidth.deployment.folder.registration import synchronise
    from fedwidth.deployment.folder.setup import listens, read_setup

    setup = read_setup(folder)
    if not listens(setup):
        print("the server does not run here: ./register.sh tells it once it does")
        return
    for line in synchronise(folder, setup):
        print(line)


def _need_flower() -> None:
    from importlib.util import find_spec

    from fedwidth.deployment.versions import check_flower

    check_flower()
    if find_spec("cryptography") is None:
        raise OptionError("cryptography is not installed; pip install 'fedwidth[flower]'")
