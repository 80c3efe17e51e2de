"""Commands that train: run, sweep; and the report of what they left."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
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


def run(
    recipe: Recipe = "",
    changes: Set = None,
    out: Out = None,
    data: Data = "",
    seeds: Seeds = "",
    engine: Engine = "",
    ray_address: RayAddress = "",
    only: Annotated[str, typer.Option("--only", help="Run only this variant of the recipe (its label).")] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Go on after a stop or a kill.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in the output folder.")] = False,
    packed: Packed = False,
    jobs: AtATime = 0,
    yardsticks: Annotated[
        bool | None,
        typer.Option(help="Also run what the same devices reach without sub-models; else as the recipe says."),
    ] = None,
    track: Track = "",
    explain: Annotated[bool, typer.Option("--explain", help="Describe every setting and stop.")] = False,
    recipes: Annotated[bool, typer.Option("--recipes", help="List the packaged recipes and stop.")] = False,
) -> int:
    """Train a recipe, and the runs it compares itself with."""
    from fedwidth.analysis.yardsticks import missing
    from fedwidth.cli.job import Job
    from fedwidth.cli.jobs import run_jobs
    from fedwidth.config import read as config
    from fedwidth.config.write import explain_settings
    from fedwidth.run.about import About

    if explain:
        print(explain_settings())
        return 0
    if recipes:
        print("\n".join(config.recipe_names()))
        return 0
    changes = [*with_data(changes, data), *with_engine(engine, ray_address)]
    found = config.read_settings(recipe or "quickstart", changes, only=only)
    folder = out or Path("runs") / (Path(recipe).stem if recipe else "quickstart")
    wanted = {run.label: (run.settings.name or run.label, run.settings) for run in found.runs}
    if found.yardsticks and not only if yardsticks is None else yardsticks:
        named = {label: settings for label, (_, settings) in wanted.items()}
        wanted |= {title: (title, settings) for title, settings in missing(named).items()}
    names = _folder_names([*wanted][1:])
    listed = []
    for label, (title, settings) in wanted.items():
        place = folder / "compare" / names[label] if label in names else folder
        if not seeds:
            listed.append(Job(label, title, settings, place))
        for seed in parse_seeds(seeds):
            listed.append(Job(label, title, replace(settings, seed=seed), place / f"seed-{seed}"))
    about = About(found.title)
    return run_jobs(
        listed, folder, resume=resume, overwrite=overwrite, track=track, packed=packed, at_a_time=jobs, about=about
    )


def sweep(
    recipe: Recipe = "",
    over: Annotated[list[str] | None, typer.Option("--over", help="A setting and its values: key=a,b,c")] = None,
    changes: Set = None,
    out: Out = None,
    data: Data = "",
    seeds: Seeds = "",
    engine: Engine = "",
    ray_address: RayAddress = "",
    only: Annotated[str, typer.Option("--only", help="Sweep this run of the recipe (its label), not the main.")] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Go on after a stop or a kill.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the runs in the output folder.")] = False,
    packed: Packed = False,
    jobs: AtATime = 0,
    yardsticks: Annotated[
        bool, typer.Option("--yardsticks", help="Also run what the same devices reach without sub-models.")
    ] = False,
    track: Track = "",
) -> int:
    """Train every combination of the given settings, compared with the best, by validation where there is one."""
    from fedwidth.analysis.yardsticks import missing
    from fedwidth.cli.job import Job
    from fedwidth.cli.jobs import run_jobs
    from fedwidth.config import read as config
    from fedwidth.run.about import About

    if not over:
        raise OptionError("say what to sweep over: --over key=value,value …, e.g. --over method.name=fedrolex,heterofl")
    axes = [_parse_axis(text) for text in over]
    changes = [*with_data(changes, data), *with_engine(engine, ray_address)]
    folder = out or Path("runs") / "sweep"
    grid = list(product(*(choices for _, choices in axes)))
    keys = [key for key, _ in axes]
    titles = _cell_titles(keys, grid)
    wanted, title = {}, ""
    for values, name in zip(grid, titles, strict=True):
        pairs = [f"{key}={value}" for key, value in zip(keys, values, strict=True)]
        found = config.read_settings(recipe or "quickstart", [*changes, *pairs], only=only, main=True)
        title = found.title
        wanted[" ".join(pairs)] = (name, replace(found.main, name=name))
    labels = list(wanted)
    if len(labels) < len(grid):
        raise OptionError("two of the runs are the same: give each value once")
    if yardsticks:
        named = dict(wanted.values())
        wanted |= {title: (title, settings) for title, settings in missing(named).items()}
    names = _folder_names(wanted)
    listed = [
        Job(label, name, replace(settings, seed=seed), folder / names[label] / f"seed-{seed}")
        for label, (name, settings) in wanted.items()
        for seed in parse_seeds(seeds) or [settings.seed]
    ]
    cells = {names[label]: values for label, values in zip(labels, grid, strict=True)}
    about = About(f"{title or 'Sweep'}, over {' and '.join(keys)}", axes, cells)
    return run_jobs(
        listed, folder, resume=resume, overwrite=overwrite, track=track, packed=packed, at_a_time=jobs, about=about
    )


def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders.")],
    out: Annotated[Path | None, typer.Option("--out", help="File to write; default: report.html in the first.")] = None,
    figures: Annotated[Path | None, typer.Option("--figures", help="Also write PNG and SVG figures here.")] = None,
    target: Annotated[str, typer.Option("--target", help="Also say what reaching this accuracy took, e.g. 0.8")] = "",
) -> None:
    """Write one self-contained report.html about finished or running runs."""
    from fedwidth.cli.targets import parse_target, print_targets
    from fedwidth.report import write_figures, write_report

    wanted = parse_target(target) if target else None
    print(write_report(folders, out or folders[0] / "report.html"))
    if figures:
        for path in write_figures(folders, figures):
            print(path)
    if wanted is not None:
        print_targets(folders, wanted)


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


def _parse_axis(text: str) -> tuple[str, list[str]]:
    name, equals, values = text.partition("=")
    choices = [value.strip() for value in values.split(",") if value.strip()]
    if not equals or not name.strip() or not choices:
        raise OptionError(f"--over must be key=value,value, not '{text}'")
    return name.strip(), choices


def _cell_titles(keys: Sequence[str], grid: Iterable[Sequence[str]]) -> list[str]:
    """A name for each combination of a sweep, as one would say it.

    >>> _cell_titles(["method.name", "training.lr"], [["fedrolex", "0.1"]])
    ['FedRolex, lr 0.1']
    >>> _cell_titles(["server.lr", "training.lr"], [["1", "0.1"]])
    ['server.lr 1, training.lr 0.1']
    """
    from fedwidth.methods import methods

    short = [key.rpartition(".")[2] for key in keys]
    words = [key if short.count(last) > 1 else last for key, last in zip(keys, short, strict=True)]
    known = methods()

    def say(key: str, word: str, value: str) -> str:
        if key == "method.name":
            return known[value].title if value in known else value
        return f"{word} {value}"

    return [", ".join(map(say, keys, words, values)) for values in grid]


def _folder_names(labels: Iterable[str]) -> dict[str, str]:
    """A folder name for each label; labels that would share one are numbered.

    >>> _folder_names(["Rate 1/4", "rate 1-4"])
    {'Rate 1/4': 'rate-1-4', 'rate 1-4': 'rate-1-4-2'}
    """
    names: dict[str, str] = {}
    for label in labels:
        plain = "".join(c if c.isalnum() or c in "-._=" else "-" for c in label).strip("-.").lower() or "run"
        name, copy = plain, 1
        while name in names.values() and label not in names:
            copy += 1
            name = f"{plain}-{copy}"
        names.setdefault(label, name)
    return names
