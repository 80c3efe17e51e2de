"""Options that several commands have, and what is made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedwidth.errors import OptionError

Recipe = Annotated[str, typer.Argument(help="A TOML file or the name of a packaged recipe; none: the quick start.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Change a setting: key=value, e.g. training.lr=0.05")]
Out = Annotated[Path | None, typer.Option("--out", help="Output folder.")]
Data = Annotated[str, typer.Option("--data", help="Folder of the data sets.")]
Seeds = Annotated[str, typer.Option("--seeds", help="Repeat with these seeds, e.g. 1,2,3")]
Engine = Annotated[str, typer.Option("--engine", help="How clients are trained, e.g. ray; short for --set engine=…")]
RayAddress = Annotated[str, typer.Option("--ray-address", help="Train on this Ray cluster: auto or host:port.")]
Packed = Annotated[bool, typer.Option("--packed", help="Train runs of one shape as one batch.")]
AtATime = Annotated[int, typer.Option("--jobs", help="Runs at a time, in processes; 0: as the machine allows.", min=0)]
Track = Annotated[str, typer.Option("--track", help="Also log to tensorboard, mlflow or wandb.")]


def with_data(changes: list[str] | None, data: str) -> list[str]:
    """The changes, with the folder of the data as one of them."""
    return [*(changes or []), *([f"data.root={json.dumps(data)}"] if data else [])]


def with_engine(engine: str, ray_address: str) -> list[str]:
    """The changes that `--engine` and `--ray-address` stand for.

    >>> with_engine("", "10.0.0.1:6379")
    ['engine="ray"', 'ray.address="10.0.0.1:6379"']
    """
    if ray_address and engine not in ("", "ray"):
        raise OptionError(f"--ray-address belongs to --engine ray, not --engine {engine}")
    address = [f"ray.address={json.dumps(ray_address)}"] if ray_address else []
    name = engine or ("ray" if ray_address else "")
    return [*([f"engine={json.dumps(name)}"] if name else []), *address]


def parse_seeds(text: str) -> list[int]:
    """The seeds of `--seeds`; none where it is not given."""
    try:
        seeds = [int(part) for part in text.split(",")] if text else []
    except ValueError:
        seeds = [-1]
    if any(seed < 0 for seed in seeds) or len(set(seeds)) < len(seeds):
        raise OptionError(f"--seeds must be different whole numbers from 0 on, such as 1,2,3, not '{text}'")
    return seeds
