"""`fedwidth together`: what the models of several runs score if they answer together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedwidth.analysis.wording import over_seeds
from fedwidth.cli.inspect import Json
from fedwidth.errors import OptionError


def answer_together(
    runs: Annotated[list[Path], typer.Argument(help="Folders of the runs; each may hold one run for every seed.")],
    data: Annotated[str, typer.Option("--data", help="Folder of the data set, where it is not the runs'.")] = "",
    as_json: Json = False,
) -> None:
    """What the models of several runs score, each alone and together: those that validation samples choose."""
    from fedwidth.cli.tables import print_table
    from fedwidth.export.several import Scored, find_by_seed, measure_together
    from fedwidth.export.wanted import share

    if len(runs) < 2:
        raise OptionError("name at least two runs, whose models are to answer together")
    found = {seed: measure_together(folders, root=data or None) for seed, folders in find_by_seed(runs).items()}
    if as_json:
        print(json.dumps([{"seed": seed, **asdict(measured)} for seed, measured in found.items()]))
        return
    measured = list(found.values())
    first, seeds = measured[0], ", ".join(map(str, found))

    def row(who: str, scored: Sequence[Scored]) -> list[str]:
        widths = dict.fromkeys(" + ".join(share(first.widths[number]) for number in each.numbers) for each in scored)
        tests = [each.test for each in scored if each.test is not None]
        return [who, " or ".join(widths), _percent([each.validation for each in scored]), _percent(tests)]

    rows = [row(str(run), [each.each[number] for each in measured]) for number, run in enumerate(runs)]
    rows.append(row("all together", [each.all for each in measured]))
    rows.append(row("chosen by validation", [each.chosen for each in measured]))
    print_table(["model", "width", "validation %", "test accuracy %"], rows)
    print(f"Seeds: {seeds}. ± is the standard deviation over seeds." if len(found) > 1 else f"Seed: {seeds}.")
    if len(found) == 1 and len(first.chosen.numbers) > 1:
        chosen = json.dumps([first.runs[number] for number in first.chosen.numbers])
        print(f"fedwidth.load({chosen}) is the model that validation samples chose.")


def _percent(values: Sequence[float]) -> str:
    return over_seeds([100 * value for value in values], 2) if values else "–"
