"""The papers' figures drawn from the runs recorded in results/, and which of them lack their runs.

Nothing is drawn that was not run: a figure without any recorded run of the paper's own method is left out, and points
of runs that are not recorded are left out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedwidth.methods import method
from fedwidth.report.plotting import FORMATS, save
from reproduction.cells import Cell
from reproduction.drawings import (
    DATA,
    Tables,
    draw_coverage,
    draw_excluded,
    draw_local,
    draw_mixes,
    draw_numbered,
    excluded_cells,
    local_accuracies,
    local_cells,
    mix_cells,
    numbered_cells,
)

FOLDER = "images/results"
"""Where the page looks for the figures, as seen from it."""


@dataclass(frozen=True)
class PaperFigure:
    """A published figure: what it shows, how it is drawn, and the runs it needs."""

    name: str
    title: str
    shows: str
    draw: Callable[[Tables], Any]
    needs: Callable[[Tables], list[Cell]] = lambda _: []
    exact: bool = False
    """Whether it needs no runs."""

    @property
    def method(self) -> str:
        """The name of the paper's own method, without which its figures say nothing."""
        return self.name.partition("-")[0]

    def state(self, tables: Tables) -> tuple[int, int]:
        """How many of the runs it needs are recorded, and how many it needs."""
        return self._count(self.needs(tables))

    def own_state(self, tables: Tables) -> tuple[int, int]:
        """How many runs of the paper's own method are recorded, and how many it needs."""
        return self._count([cell for cell in self.needs(tables) if cell.run.settings.method.name == self.method])

    def _count(self, cells: Sequence[Cell]) -> tuple[int, int]:
        if self.name == FIGURE_5:
            return sum(bool(local_accuracies(cell)) for cell in cells), len(cells)
        return sum(bool(cell.records) for cell in cells), len(cells)

    def is_drawn(self, tables: Tables) -> bool:
        """Whether there is anything to draw."""
        return self.exact or self.own_state(tables)[0] > 0


def write_figures(tables: Tables, out: Path, *, figures: Sequence[PaperFigure] | None = None) -> list[Path]:
    """Draw those of the figures (by default all) whose runs are recorded into the folder `out`; returns the files.

    Files that are left of figures whose runs are not recorded any more are removed.
    """
    written = []
    for figure in figures or FIGURES:
        if figure.is_drawn(tables):
            written += save(out, figure.name, figure.draw, tables)
        else:
            for format in FORMATS:
                (out / f"{figure.name}.{format}").unlink(missing_ok=True)
    return written


def figure_texts(tables: Tables) -> list[str]:
    """The paragraphs of the section: each figure that is drawn, and a list of those that are not, with the reason."""
    texts, missing = [], []
    for figure in FIGURES:
        done, needed = figure.state(tables)
        if figure.is_drawn(tables):
            count = "" if figure.exact else f" Drawn from {done} of the {needed} runs it needs."
            texts.append(f"### {figure.title}\n\n{figure.shows}{count}")
            texts.append(f"![{figure.title}]({FOLDER}/{figure.name}.png)")
        else:
            missing.append(f"- {figure.title}: {_lacks(figure, tables)}. It shows: {figure.shows}")
    if missing:
        texts += ["### Not drawn", "\n".join(missing)]
    return texts


def _lacks(figure: PaperFigure, tables: Tables) -> str:
    """Why a figure is not drawn."""
    done, needed = figure.state(tables)
    if not done:
        return f"none of its {needed} runs is recorded"
    own, title = figure.own_state(tables)[1], method(figure.method).title
    return f"{done} of its {needed} runs {'is' if done == 1 else 'are'} recorded, but none of the {own} of {title}"


def _make(number: int, shows: str, *, prefix: str, x: str, data: Iterable[str], log: bool = False) -> PaperFigure:
    recipes = [f"fedrolex/figure{number}-{name}" for name in data]
    return PaperFigure(
        name=f"fedrolex-figure{number}",
        title=f"FedRolex Figure {number}",
        shows=shows,
        needs=partial(numbered_cells, recipes=recipes, prefix=prefix),
        draw=partial(draw_numbered, recipes=recipes, prefix=prefix, x=x, log=log),
    )


FIGURE_5 = "fedrolex-figure5"

FIGURES = (
    _make(
        3,
        "Accuracy over the share of clients at full width, the others at 1/16.",
        prefix="rho-",
        x="share ρ of clients at full width",
        data=DATA,
    ),
    _make(
        4,
        "Accuracy of a server model γ times as wide as every client's.",
        prefix="gamma-",
        x="γ",
        data=DATA,
        log=True,
    ),
    PaperFigure(
        name=FIGURE_5,
        title="FedRolex Figure 5",
        shows="Local accuracies of single clients, FedRolex beside the smallest homogeneous model.",
        needs=local_cells,
        draw=draw_local,
    ),
    _make(
        6,
        "Accuracy over the overlap r of the windows of consecutive rounds.",
        prefix="r-",
        x="overlap r",
        data=("cifar10", "cifar100"),
    ),
    PaperFigure(
        name="fedbrb-figure3d",
        title="FedBRB Figure 3d",
        shows="Which weights of a 512 × 512 tensor are trained when every client has width 1/4 (exact, no training);"
        " the percentage is the share trained at least once in 512 rounds.",
        draw=draw_coverage,
        exact=True,
    ),
    PaperFigure(
        name="fedbrb-figure5",
        title="FedBRB Figure 5",
        shows="FedBRB with mixes a0-x1-e1 against the smallest model trained as a whole, CIFAR-10, dynamic.",
        needs=mix_cells,
        draw=draw_mixes,
    ),
    PaperFigure(
        name="fedbrb-figure6",
        title="FedBRB Figure 6",
        shows="FedBRB with and without the updates of its smallest clients, CIFAR-10, fixed.",
        needs=excluded_cells,
        draw=draw_excluded,
    ),
)
