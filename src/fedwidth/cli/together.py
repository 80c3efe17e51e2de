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


def answer_together(
    runs: Annotated[list[Path], typer.Argument(help="Folders of the runs; each may hold one run for every seed.")],
    data: Annotated[str, typer.Option("--data", help="Folder of the data set, where it is not the runs'.")] = "",
    as_json: Json = False,
) -> None:
    """What the models of several runs score, each alone and together: those that validation samples choose."""
    from fedwidth.cli.tables import print_table
    from fedwidth.export.several import Scored, measure_together
    from fedwidth.export.wanted import share

    found = measure_together(runs, root=data or None)
    if as_json:
        print(json.dumps([{"seed": seed, **asdict(measured)} for seed, measured in found.items()]))
        return
    measured = list(found.values())
    measure = measured[0].measure

    def row(who: str, scored: Sequence[Scored]) -> list[str]:
        widths = dict.fromkeys(" + ".join(map(share, each.widths)) for each in scored)
        parts = [[each.validation for each in scored], [each.test for each in scored if each.test is not None]]
        shown = [over_seeds(map(measure.scaled, part), 2, measure) if part else "–" for part in parts]
        return [who, " or ".join(widths), *shown]

    rows = [row(str(run), [each.each[number] for each in measured]) for number, run in enumerate(runs)]
    rows.append(row("all together", [each.all for each in measured]))
    rows.append(row("chosen by validation", [each.chosen for each in measured]))
    print_table(["model", "width", f"validation{measure.unit}", f"test {measure.title}{measure.unit}"], rows)
    print(f"Seeds: {', '.join(map(str, found))}." + " ± is the standard deviation over seeds." * (len(found) > 1))
    for seed, each in found.items():
        print(f"Validation samples of seed {seed} chose fedwidth.load({json.dumps(each.chosen.runs)}).")
