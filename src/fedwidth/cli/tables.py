"""Tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    """Print a table; the first column is left-aligned, numbers are right-aligned. Nothing is read as markup."""
    table = Table(title=title, title_justify="left", header_style="bold", show_edge=False, pad_edge=False)
    for number, column in enumerate(columns):
        numeric = all(_is_number(row[number]) for row in rows)
        table.add_column(Text(column), justify="right" if number and numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=300)  # in a pipe or a file nothing is folded
    console.print(table)


def _is_number(cell: str) -> bool:
    return cell in ("", "–") or cell.lstrip("+−")[:1].isdigit()
