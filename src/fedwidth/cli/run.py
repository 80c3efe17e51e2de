"""The command that trains a recipe: run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fedwidth.cli import options
from fedwidth.cli.options import parse_seeds, with_data, with_engine


def run(
    recipe: options.Recipe = "",
    changes: options.Set = None,
    out: options.Out = None,
    data: options.Data = "",
    seeds: options.Seeds = "",
    engine: options.Engine = "",
    ray_address: options.RayAddress = "",
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Run only this variant of the recipe (its label); may be repeated."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on after a stop or a kill.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in the output folder.")] = False,
    packed: options.Packed = False,
    jobs: options.AtATime = 0,
    yardsticks: Annotated[
        bool | None,
        typer.Option(help="Also run what the same devices reach without sub-models; else as the recipe says."),
    ] = None,
    track: options.Track = "",
    explain: Annotated[bool, typer.Option("--explain", help="Describe every setting and stop.")] = False,
    recipes: Annotated[bool, typer.Option("--recipes", help="List the packaged recipes and stop.")] = False,
) -> int:
    """Train a recipe, and the runs it compares itself with."""
    from fedwidth.cli.runs.all_runs import run_all
    from fedwidth.cli.runs.planned_run import PlannedRun, folder_names
    from fedwidth.cli.runs.resolved import find_yardsticks
    from fedwidth.config.read import read_settings, recipe_names
    from fedwidth.config.write import explain_settings
    from fedwidth.run.about import About
    from fedwidth.run.cache import Cache

    if explain:
        print(explain_settings())
        return 0
    if recipes:
        print("\n".join(recipe_names()))
        return 0
    changes = [*with_data(changes, data), *with_engine(engine, ray_address)]
    found = read_settings(recipe or "quickstart", changes, only=only or ())
    folder = out or Path("runs") / (Path(recipe).stem if recipe else "quickstart")
    numbers, cache = parse_seeds(seeds), Cache()
    wanted = {run.label: (run.settings.name or run.label, run.settings) for run in found.runs}
    if found.yardsticks and not only if yardsticks is None else yardsticks:
        named = {label: settings for label, (_, settings) in wanted.items()}
        wanted |= find_yardsticks(named, numbers, cache)
    names = folder_names([*wanted][1:])
    listed = []
    for label, (title, settings) in wanted.items():
        own = folder / "compare" / names[label] if label in names else folder
        if not numbers:
            listed.append(PlannedRun(label, title, settings, own))
        for seed in numbers:
            listed.append(PlannedRun(label, title, replace(settings, seed=seed), own / f"seed-{seed}"))
    about = About(found.title)
    return run_all(
        listed,
        folder,
        cache,
        resume=resume,
        overwrite=overwrite,
        track=track,
        packed=packed,
        at_a_time=jobs,
        about=about,
    )
