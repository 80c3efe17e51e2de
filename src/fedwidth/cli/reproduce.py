"""The command for published tables: reproduce."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedwidth.cli.options import Data, Packed, Seeds, Set, parse_seeds, with_data
from fedwidth.errors import OptionError, whole_number

Results = Annotated[Path, typer.Option("--results", help="Folder of the finished runs.")]


def reproduce(
    tables: Annotated[list[str] | None, typer.Argument(help="Recipes, e.g. fedrolex/table3-cifar10-high.")] = None,
    queue: Annotated[
        Path | None, typer.Option("--queue", help="Take the next jobs of this file instead, e.g. results/queue.toml.")
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="Only say which jobs of the queue are done or left.")] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Only the runs with this label (jobs of this name); may repeat.")
    ] = None,
    seeds: Seeds = "",
    max_minutes: Annotated[
        float | None, typer.Option("--max-minutes", help="Stop after this long; what is unfinished goes on next time.")
    ] = None,
    packed: Packed = False,
    start: Annotated[
        int | None,
        typer.Option(
            "--start", help="Run the first run (or --only) of each for so many rounds; writes started.json (--results)."
        ),
    ] = None,
    changes: Set = None,
    data: Data = "",
    results: Results = Path("results"),
    work: Annotated[Path, typer.Option("--work", help="Folder of unfinished runs.")] = Path("runs/reproduce"),
    commit: Annotated[
        str, typer.Option("--commit", help="Commit of the source, for the records; else FEDWIDTH_COMMIT, else git's.")
    ] = "",
) -> int:
    """Run what the results of published tables lack, or what waits in a queue, and record it."""
    from fedwidth.cli.queue import list_queue, run_queue
    from fedwidth.cli.runs.checks import check_engine
    from fedwidth.cli.runs.stop import stop_signal
    from fedwidth.reproduce.running import reproduce as go
    from fedwidth.reproduce.start import start_tables
    from fedwidth.reproduce.table_runs import list_table_runs
    from fedwidth.run.provenance import find_commit

    if max_minutes is not None and not max_minutes > 0:
        raise OptionError(f"--max-minutes must be a number above 0, not {max_minutes:g}")
    if start is not None:
        whole_number("--start", start, least=1)
        if seeds or packed or max_minutes is not None:
            raise OptionError("--start notes one seed of a few rounds: leave out --seeds, --packed and --max-minutes")
    for name, folder in (("--work", work), ("--results", results)):
        if folder.exists() and not folder.is_dir():
            raise OptionError(f"{folder} is a file; give a folder as {name}")
    changes = with_data(changes, data)
    shared: dict[str, Any] = {
        "changes": changes,
        "results": results,
        "work": work,
        "max_minutes": max_minutes,
        "packed": packed,
        "say": _say,
    }
    if queue is not None:
        if tables or seeds or start is not None:
            raise OptionError("--queue names the runs itself: leave out tables, --seeds and --start")
        with stop_signal() as stop:
            if show:
                list_queue(queue, only or [], changes=changes, results=results, work=work)
                return 0
            return run_queue(queue, only or [], commit=find_commit(commit), stop=stop, **shared)
    if show or not tables:
        raise OptionError("--list shows a --queue" if show else "name the recipes to run, or a --queue")
    for run in list_table_runs(tables, only=only or [], seeds=[], changes=changes, work=work):
        check_engine(run.settings)
    with stop_signal() as stop:
        if start is not None:
            start_tables(tables, start, only=only or [], changes=changes, results=results, say=_say, stop=stop)
            return 0
        own: dict[str, Any] = {"only": only or [], "seeds": parse_seeds(seeds)}
        go(tables, commit=find_commit(commit), stop=stop, **own, **shared)
    return 0


def _say(text: str) -> None:
    print(text, flush=True)  # also where the output is a file
