"""Words and tables of docs/results.md."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev

from fedwidth.config.recipe import Paper


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, last: int = 0) -> str:
    """A table whose first and last columns are text, so many of them."""
    lines = [columns, [*["---"] * left, *["---:"] * (len(columns) - left - last), *["---"] * last], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def folded(title: str, text: str) -> str:
    """Text that is hidden until its title (HTML) is clicked, on the site as on GitHub."""
    return f'<details markdown="1">\n<summary>{title}</summary>\n\n{text}\n\n</details>'


def plural(count: int, word: str) -> str:
    """A number of things.

    >>> plural(1, "pair"), plural(2, "pair")
    ('1 pair', '2 pairs')
    """
    return f"{count} {word}{'' if count == 1 else 's'}"


def published(paper: Paper) -> str:
    """A published accuracy."""
    return "–" if paper.number is None else with_spread(paper.number, paper.spread)


def over_seeds(values: Sequence[float]) -> str:
    """Mean and standard deviation.

    >>> over_seeds([1.0, 3.0]), over_seeds([2.0])
    ('2.00 ± 1.41', '2.00')
    """
    return with_spread(mean(values), stdev(values) if len(values) > 1 else None)


def with_spread(number: float, spread: float | None) -> str:
    """A number and its spread, where there is one."""
    return f"{number:.2f}" if spread is None else f"{number:.2f} ± {spread:.2f}"


def percent(share: float) -> str:
    """100 % only where nothing is missing."""
    return "100 %" if share == 1 else f"{min(100 * share, 99.9):.1f} %"
