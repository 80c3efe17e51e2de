"""The section about recipes of which a few rounds were made, to see that they run, and about those never tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fedwidth.analysis.wording import show_time
from fedwidth.reproduce.started import StartedRun
from reproduction.cells import Cell
from reproduction.markdown import make_table

NO_STACK_OVERFLOW = (
    "Those with `stackoverflow` in their names were not started because their data set, an HDF5 file of some GB, was"
    " not available; `fedrolex/next-word-ubuntu` stands in for it."
)


def started_texts(tables: Mapping[str, Sequence[Cell]], started: Sequence[StartedRun]) -> Iterator[str]:
    """The paragraphs of the section, and a table of the runs that were started."""
    if started:
        rows = [
            [
                f"`{run.recipe}`",
                run.label,
                str(run.rounds),
                "–" if run.train_loss is None else f"{run.train_loss:.3f}",
                show_time(run.seconds),
                run.hardware,
                f"{run.date}, fedwidth {run.version}" if run.version else run.date,
            ]
            for run in started
        ]
        yield (
            "Started for a few rounds (`fedwidth reproduce RECIPE --start ROUNDS`), to see that the recipe runs from"
            " its data to its losses. These runs are not results and stand in no table above."
        )
        yield make_table(
            ["recipe", "run", "rounds", "training loss at the end", "time", "hardware", "date"], rows, left=2
        )
    run_at_all = {name for name, cells in tables.items() if any(cell.records or cell.unfinished for cell in cells)}
    never = [name for name in tables if name not in run_at_all | {run.recipe for run in started}]
    if not never:
        yield "Every recipe has been run or started."
        return
    lacking = any(cell.run.settings.data.name == "stackoverflow" for name in never for cell in tables[name])
    why = f" {NO_STACK_OVERFLOW}" if lacking else ""
    yield f"Neither run nor started yet: {', '.join(f'`{name}`' for name in never)}.{why}"
