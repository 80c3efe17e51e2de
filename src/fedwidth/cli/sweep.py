"""The command that trains every combination of some settings: sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedwidth.cli import options
from fedwidth.cli.options import parse_seeds, with_data, with_engine
from fedwidth.errors import FedwidthError, OptionError

if TYPE_CHECKING:
    from fedwidth.config.recipe import Recipe

WIDTH, STAY = "model.width", "devices.relative_to=model"
"""The setting whose sweep asks about the same devices, and what makes them stay as they are."""
SAID = (
    f"--over {WIDTH}: devices stay as they are ({STAY}); --set devices.relative_to=server lets them shrink with the"
    " server's model"
)
MAX_VALUE = 40
"""Characters of a value that a title shows."""


def sweep(
    recipe: options.Recipe = "",
    over: Annotated[list[str] | None, typer.Option("--over", help="A setting and its values: key=a,b,c")] = None,
    changes: options.Set = None,
    out: options.Out = None,
    data: options.Data = "",
    seeds: options.Seeds = "",
    engine: options.Engine = "",
    ray_address: options.RayAddress = "",
    only: Annotated[str, typer.Option("--only", help="Sweep this run of the recipe (its label), not the main.")] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Go on after a stop or a kill.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the runs in the output folder.")] = False,
    packed: options.Packed = False,
    jobs: options.AtATime = 0,
    yardsticks: Annotated[
        bool, typer.Option("--yardsticks", help="Also run what the same devices reach without sub-models.")
    ] = False,
    track: options.Track = "",
) -> int:
    """Train every combination of the given settings, compared with the best, by validation where there is one."""
    from fedwidth.cli.runs.all_runs import run_all
    from fedwidth.cli.runs.planned_run import PlannedRun, folder_names
    from fedwidth.cli.runs.resolved import find_yardsticks
    from fedwidth.cli.runs.training import say_aside
    from fedwidth.config.read import read_settings
    from fedwidth.config.recipe import all_with_public
    from fedwidth.run.about import About
    from fedwidth.run.cache import Cache

    if not over:
        raise OptionError("say what to sweep over: --over key=value,value …, e.g. --over method.name=fedrolex,heterofl")
    axes = [_parse_axis(text) for text in over]
    changes = [*with_data(changes, data), *with_engine(engine, ray_address)]
    folder = out or Path("runs") / "sweep"
    numbers, cache = parse_seeds(seeds), Cache()
    grid = list(product(*(choices for _, choices in axes)))
    keys = [key for key, _ in axes]
    if twice := next((key for key in keys if keys.count(key) > 1), ""):
        raise OptionError(f"--over names {twice} twice: give all its values in one, {twice}=a,b,c")
    if "seed" in keys:
        raise OptionError("seeds repeat a run and are nothing to choose between: --seeds 1,2,3 in place of --over seed")
    if fixed := next((key for key in keys if key in {text.partition("=")[0].strip() for text in changes}), ""):
        raise OptionError(f"--over sweeps over {fixed}, which is set to one value too: leave one of them out")
    titles = _cell_titles(keys, grid)
    wanted, title, stay = {}, "", False
    for values, name in zip(grid, titles, strict=True):
        pairs = [f"{key}={value}" for key, value in zip(keys, values, strict=True)]
        read = partial(read_settings, recipe or "quickstart", [*changes, *pairs], only=only, main=True)
        as_asked = read()
        found = _with_same_devices(as_asked, read) if WIDTH in keys else as_asked
        title, stay = found.title, stay or found != as_asked
        wanted[" ".join(pairs)] = (name, replace(found.main, name=name))
    trained = all_with_public([settings for _, settings in wanted.values()])
    wanted = {label: (name, own) for (label, (name, _)), own in zip(wanted.items(), trained, strict=True)}
    labels = list(wanted)
    if len(labels) < len(grid):
        raise OptionError("two of the runs are the same: give each value once")
    if yardsticks:
        wanted |= find_yardsticks(dict(wanted.values()), numbers, cache)
    names = folder_names(wanted)
    listed = [
        PlannedRun(label, name, replace(settings, seed=seed), folder / names[label] / f"seed-{seed}")
        for label, (name, settings) in wanted.items()
        for seed in numbers or [settings.seed]
    ]
    cells = {names[label]: values for label, values in zip(labels, grid, strict=True)}
    about = About(f"{title or 'Sweep'}, over {' and '.join(keys)}", axes, cells)
    if stay:
        say_aside(SAID)
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


def _with_same_devices(asked: Recipe, read: Callable[..., Recipe]) -> Recipe:
    """A cell of a sweep over the server's width beside devices that stay as they are, unless it says what they do.

    Budgets and shares of a rank say nothing of that width: such devices stay as they are in any case.
    """
    from fedwidth.config.method_settings import method_of

    if asked.main.devices.budgets or asked.main.adapter.rank or method_of(asked.main).adapters:
        return asked
    try:
        return read(defaults=[STAY])
    except OptionError as error:
        raise OptionError(f"{error} ({SAID})") from None


def _parse_axis(text: str) -> tuple[str, list[str]]:
    name, equals, values = text.partition("=")
    choices = [value for value in _split(values) if value]
    if not equals or not name.strip() or not choices:
        raise OptionError(f"--over must be key=value,value, not '{text}'")
    return name.strip(), choices


def _split(text: str) -> list[str]:
    """The values between commas; a comma inside brackets, braces or quotes belongs to its value.

    >>> _split("a1-b1, [1, 0.5], {step = 1, rounding = 'up, or down'}")
    ['a1-b1', '[1, 0.5]', "{step = 1, rounding = 'up, or down'}"]
    """
    values, start, depth, quote = [], 0, 0, ""
    for place, character in enumerate(text):
        if quote or character in "\"'":
            quote = character if not quote else "" if character == quote else quote
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        elif character == "," and not depth:
            values.append(text[start:place].strip())
            start = place + 1
    if depth or quote:
        raise OptionError(f"--over has a bracket or a quote that is not closed: '{text}'")
    return [*values, text[start:].strip()]


def _method_title(name: str) -> str:
    """What tables call a method; its name where there is none, which is said when the settings are read."""
    from fedwidth.methods import method

    try:
        return method(name).title
    except FedwidthError:
        return name


def _cell_titles(keys: Sequence[str], grid: Iterable[Sequence[str]]) -> list[str]:
    """A name for each combination of a sweep, as one would say it.

    >>> _cell_titles(["method.name", "training.lr"], [["fedrolex", "0.1"]])
    ['FedRolex, lr 0.1']
    >>> _cell_titles(["server.lr", "training.lr"], [["1", "0.1"]])
    ['server.lr 1, training.lr 0.1']

    A long value is cut, and titles that would be the same are numbered:

    >>> lists = ["[" + "1," * 30 + "0.5]", "[" + "1," * 31 + "0.5]"]
    >>> _cell_titles(["devices.capacities"], [[each] for each in lists])
    ['capacities [1,1,1,1,1,1,1,1,…1,1,1,0.5]', 'capacities [1,1,1,1,1,1,1,1,…1,1,1,0.5] (2)']
    """
    short = [key.rpartition(".")[2] for key in keys]
    words = [key if short.count(last) > 1 else last for key, last in zip(keys, short, strict=True)]

    def say(key: str, word: str, value: str) -> str:
        if key == "method.name":
            return _method_title(value)
        return f"{word} {value if len(value) <= MAX_VALUE else f'{value[:17]}…{value[-10:]}'}"

    said: Counter[str] = Counter()
    titles = []
    for values in grid:
        title = ", ".join(map(say, keys, words, values))
        said[title] += 1
        titles.append(title if said[title] == 1 else f"{title} ({said[title]})")
    return titles
