"""`python -m reproduction`, from the top of the repository: writes docs/results.md, its figures, and the tables of
docs/benchmark.md with its pages and docs/choosing-a-method.md (`make results`)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedwidth.errors import FedwidthError, OptionError
from fedwidth.files import write_whole
from fedwidth.reproduce.records import read_all
from reproduction.benchmark.asked import as_asked
from reproduction.benchmark.page import PAGES, SETS, per_seed, write_benchmark
from reproduction.figures import FOLDER, write_figures
from reproduction.page import find_tables, write_page


def write_results(
    results: Annotated[Path, typer.Option("--results", help="Folder of the finished runs.")] = Path("results"),
    out: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("docs/results.md"),
    figures: Annotated[bool, typer.Option(help="Also draw the figures, into images/results beside the page.")] = True,
) -> None:
    """Write the page that shows finished runs beside the published numbers, its figures, and coverage.json (--results).

    The last one keeps what the page says about coverage: it is measured the first time, which takes a minute.
    """
    if not results.is_dir():
        raise OptionError(f"there is no folder {results}; give the one of the finished runs as --results")
    write_whole(out, write_page(results))
    print(out)
    records = read_all(results)
    asked = as_asked(records)
    if left := len(records) - len(asked):
        print(f"{left} records of the benchmark's recipes have other settings than these and are left out of its pages")
    pages = [page for name in PAGES if (page := out.parent / name).exists()]
    for page in pages:
        write_whole(page, write_benchmark(page.read_text(encoding="utf-8"), asked))
        print(page)
    if pages:
        for name in SETS:
            path = results / "benchmark" / f"{name}.csv"
            write_whole(path, per_seed(name, asked))
            print(path)
    if figures:
        for path in write_figures(find_tables(records), out.parent / FOLDER):
            print(path)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(write_results)
    try:
        return int(app(arguments, prog_name="reproduction", standalone_mode=False) or 0)
    except FedwidthError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
