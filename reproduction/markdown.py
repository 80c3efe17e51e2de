"""Tables, folded parts and published numbers in Markdown, as docs/results.md has them."""

from __future__ import annotations

from collections.abc import Sequence

from fedwidth.analysis.wording import with_spread
from fedwidth.config.recipe import Paper


def make_table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, last: int = 0) -> str:
    """A table whose first columns (`left`) and last ones (`last`) are text; those between are numbers.

    >>> print(make_table(["run", "accuracy"], [["a", "1.00"]]))
    | run | accuracy |
    | --- | ---: |
    | a | 1.00 |
    """
    lines = [columns, [*["---"] * left, *["---:"] * (len(columns) - left - last), *["---"] * last], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def folded(title: str, text: str) -> str:
    """Text that is hidden until its title (HTML) is clicked, on the site as on GitHub."""
    return f'<details markdown="1">\n<summary>{title}</summary>\n\n{text}\n\n</details>'


def published(paper: Paper) -> str:
    """The accuracy that a paper prints, with its spread; a dash where it prints none."""
    return "–" if paper.number is None else with_spread(paper.number, paper.spread)


def percent(share: float) -> str:
    """A share in percent; 100 % only where nothing is missing.

    >>> percent(0.4980), percent(0.99999), percent(1)
    ('49.8 %', '99.9 %', '100 %')
    """
    return "100 %" if share == 1 else f"{min(100 * share, 99.9):.1f} %"
