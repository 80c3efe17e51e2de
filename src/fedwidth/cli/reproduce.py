"""Commands for published tables: reproduce, results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedwidth.commands.run import Data, Packed, Seeds, Set, parse_seeds, with_data
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
    from fedwidth.commands.jobs import check_engine, stop_signal
    from fedwidth.commands.waiting import list_queue, run_queue
    from fedwidth.provenance import find_commit
    from fedwidth.reproduce import reproduce as go
    from fedwidth.reproduce_jobs import list_jobs
    from fedwidth.reproduce_start import start as begin

    if max_minutes is not None and not max_minutes > 0:
        raise OptionError(f"--max-minutes must be a number above 0, not {max_minutes:g}")
    if start is not None:
        whole_number("--start", start, least=1)
        if seeds or packed or max_minutes is not None:
            raise OptionError("--start notes one seed of a few rounds: leave out --seeds, --packed and --max-minutes")
    for name, place in (("--work", work), ("--results", results)):
        if place.exists() and not place.is_dir():
            raise OptionError(f"{place} is a file; give a folder as {name}")
    changes = with_data(changes, data)
    if queue is not None:
        if tables or seeds or start is not None:
            raise OptionError("--queue names the runs itself: leave out tables, --seeds and --start")
        with stop_signal() as stop:
            if show:
                list_queue(queue, only or [], changes=changes, results=results, work=work)
                return 0
            return run_queue(
                queue,
                only or [],
                changes=changes,
                results=results,
                work=work,
                max_minutes=max_minutes,
                packed=packed,
                commit=find_commit(commit),
                say=_say,
                stop=stop,
            )
    if show or not tables:
        raise OptionError("--list shows a --queue" if show else "name the recipes to run, or a --queue")
    for job in list_jobs(tables, only=only or [], seeds=[], changes=changes, work=work):
        check_engine(job.settings)
    with stop_signal() as stop:
        if start is not None:
            begin(tables, start, only=only or [], changes=changes, results=results, say=_say, stop=stop)
            return 0
        go(
            tables,
            only=only or [],
            seeds=parse_seeds(seeds),
            changes=changes,
            results=results,
            work=work,
            max_minutes=max_minutes,
            packed=packed,
            commit=find_commit(commit),
            say=_say,
            stop=stop,
        )
    return 0


def _say(text: str) -> None:
    print(text, flush=True)  # also where the output is a file


def results(
    results: Results = Path("results"),
    out: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("docs/results.md"),
    figures: Annotated[bool, typer.Option(help="Also draw the figures, into images/results beside the page.")] = True,
) -> None:
    """Write the page that shows finished runs beside the published numbers, its figures, and coverage.json (--results).

    The last one holds what the page says about coverage: measured the first time, which takes a minute, and kept.
    """
    from fedwidth.checkpoint import write_whole
    from fedwidth.results import read_all
    from fedwidth.results_figures import FOLDER, write_figures
    from fedwidth.results_page import find_tables, write_page

    if not results.is_dir():
        raise OptionError(f"there is no folder {results}; give the one of the finished runs as --results")
    write_whole(out, write_page(results))
    print(out)
    if figures:
        for path in write_figures(find_tables(read_all(results)), out.parent / FOLDER):
            print(path)
