"""How the papers' figures are drawn from recorded runs, and which runs each of them shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedwidth.analysis.replay import replay
from fedwidth.methods import method
from fedwidth.models import build, example_inputs
from fedwidth.plan import Plan, trace
from fedwidth.report.coverage_view import pool
from fedwidth.report.plotting import COLOURS, Line, heat_maps, new_panels, plot_lines
from reproduction.cells import Cell
from reproduction.exact import METHODS, MODEL

Tables = Mapping[str, Sequence[Cell]]
"""The cells of each recipe."""

DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "stackoverflow": "Stack Overflow"}
MIXES = {"a0-e1": "e", "a0-d1-e1": "d", "a0-c1-e1": "c", "a0-b1-e1": "b"}
"""The mixes of devices of FedBRB Figures 5 and 6, a0-x1-e1, and their x."""
LOCAL = [f"fedrolex/table4-{data}-{kind}" for data in ("cifar10", "cifar100") for kind in ("high", "low")]
"""The recipes of FedRolex Figure 5, in which devices are spread as household incomes."""
KINDS = ("non-iid-2", "non-iid-5", "iid")
"""The splits of FedBRB's figures: 2, 5 or all labels per client."""
ROUNDS, CAPACITY = (32, 128, 512), 0.25
"""FedBRB Figure 3d: after how many rounds the weights are shown, and the capacity of every client."""


def numbered_cells(tables: Tables, recipes: Sequence[str], prefix: str) -> list[Cell]:
    """The runs of these recipes whose labels begin so."""
    return [cell for name in recipes for cell in tables.get(name, ()) if cell.run.label.startswith(prefix)]


def draw_numbered(tables: Tables, *, recipes: Sequence[str], prefix: str, x: str, log: bool = False) -> Any:
    """Accuracy over the number in the runs' labels, such as rho-0.3/high; a panel for each data set."""
    shown = [name for name in recipes if any(cell.records for cell in numbered_cells(tables, [name], prefix))]
    figure, plots = new_panels(1, len(shown), 3.6, 3.0)
    for plot, name in zip(plots[0], shown, strict=True):
        found: dict[str, dict[float, Cell]] = {}
        for cell in numbered_cells(tables, [name], prefix):
            number, _, line = cell.run.label.removeprefix(prefix).partition("/")
            found.setdefault(line, {})[float(number)] = cell
        if prefix == "gamma-":
            _add_whole(tables, name, found)
        lines = [_line(position, label, cells) for position, (label, cells) in enumerate(found.items())]
        plot_lines(plot, [line for line in lines if len(line[2])], log=log, ticks=_number if log else None)
        plot.set(xlabel=x, ylabel="test accuracy [%]")
        plot.set_title(DATA[name.split("-")[-1]], fontsize=9)
    return figure


def _add_whole(tables: Tables, name: str, found: dict[str, dict[float, Cell]]) -> None:
    """Add the point of gamma 1 of Figure 4, which is the largest homogeneous run of Table 3."""
    for line, cells in found.items():
        kind = name.removeprefix("fedrolex/figure4-") + (f"-{line.split('/')[0]}" if "/" in line else "")
        for cell in tables.get(f"fedrolex/table3-{kind}", ()):
            if cell.run.label == "largest":
                cells[1.0] = cell


def _line(position: int, label: str, cells: Mapping[float, Cell]) -> Line:
    known = [(number, cells[number].final) for number in sorted(cells) if cells[number].records]
    several = any(len(values) > 1 for _, values in known)
    return (
        position,
        label.replace("/", ", "),
        np.array([number for number, _ in known]),
        np.array([mean(values) for _, values in known]),
        [np.array([pick(values) for _, values in known]) for pick in (min, max)] if several else None,
    )


def local_cells(tables: Tables) -> list[Cell]:
    """The runs whose single clients FedRolex Figure 5 shows."""
    return [cell for name in LOCAL for cell in tables.get(name, ()) if cell.run.label in ("fedrolex", "smallest")]


def local_accuracies(cell: Cell) -> list[float]:
    """The accuracies of single clients in percent, all seeds of a cell together."""
    return [100 * accuracy for record in cell.records for accuracy, _ in record.clients or () if accuracy is not None]


def draw_local(tables: Tables) -> Any:
    """FedRolex Figure 5: how many clients reach which accuracy; a panel for each data set and split."""
    cells = local_cells(tables)
    panels: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        data = cell.run.settings.data
        panels.setdefault((data.name, data.partition_options["per_client"]), []).append(cell)
    shown = {key: mine for key, mine in panels.items() if any(local_accuracies(cell) for cell in mine)}
    figure, plots = new_panels(1, len(shown), 2.9, 2.6)
    for plot, ((data_name, labels), mine) in zip(plots[0], shown.items(), strict=True):
        for cell in mine:
            colour, title = (COLOURS[1], "FedRolex") if cell.run.label == "fedrolex" else (COLOURS[0], "all at 1/16")
            if accuracies := local_accuracies(cell):
                plot.hist(accuracies, bins=25, range=(0, 100), color=colour, alpha=0.6, label=title)
        plot.set(xlabel="local accuracy [%]", ylabel="clients")
        plot.set_title(f"{DATA[data_name]}, {labels} labels per client", fontsize=9)
        plot.legend(fontsize="small")
    return figure


def mix_cells(tables: Tables) -> list[Cell]:
    """The runs FedBRB Figure 5 shows."""
    wanted = [f"{mix}/{kind}/fedbrb" for kind in KINDS for mix in MIXES]
    return [cell for cell in tables.get("fedbrb/table3-cifar10-dynamic", ()) if cell.run.label in wanted]


def draw_mixes(tables: Tables) -> Any:
    """FedBRB Figure 5: ours filled, published hollow; the line is the smallest model trained as a whole."""
    cells = {cell.run.label: cell for cell in mix_cells(tables)}
    kinds = [kind for kind in KINDS if any(cells[f"{mix}/{kind}/fedbrb"].records for mix in MIXES)]
    figure, plots = new_panels(1, len(kinds), 3.2, 2.8)
    for plot, kind in zip(plots[0], kinds, strict=True):
        for position, mix in enumerate(MIXES):
            cell = cells[f"{mix}/{kind}/fedbrb"]
            if cell.records:
                plot.plot([position] * len(cell.final), cell.final, ".", color=COLOURS[7], markersize=4)
                plot.plot(position, mean(cell.final), "o", color=COLOURS[7], label="ours")
            if cell.paper.number is not None:
                plot.plot(position, cell.paper.number, "o", mfc="none", color=COLOURS[7], label="paper")
        if kind == "non-iid-2":
            (whole,) = tables["fedbrb/figure5-cifar10"]
            if whole.records:
                plot.axhline(mean(whole.final), color=COLOURS[0], label="1/16 trained whole, ours")
            plot.axhline(whole.paper.number, color=COLOURS[0], linestyle=":", label="1/16 trained whole, paper")
        _label_mixes(plot, kind)
    return figure


def _label_mixes(plot: Any, kind: str) -> None:
    """The axes of FedBRB Figures 5 and 6, and each label once."""
    plot.set_xticks(range(len(MIXES)), list(MIXES.values()))
    plot.set(xlabel="x in a0-x1-e1", ylabel="test accuracy [%]")
    plot.set_title(kind, fontsize=9)
    handles, labels = plot.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    plot.legend(list(once.values()), list(once), fontsize=7)


ALL, WITHOUT = "fedbrb/table4-cifar10-fixed", "fedbrb/figure6-cifar10"
WAYS = ((-0.1, "/fedbrb", COLOURS[7], "all clients"), (0.1, "", COLOURS[0], "without e"))
"""FedBRB Figure 6 has two kinds of runs: how far beside its mix each is drawn, how its labels end, colour, title."""


def excluded_cells(tables: Tables) -> list[Cell]:
    """The runs FedBRB Figure 6 shows: with all clients, and without the smallest."""
    wanted = [f"{mix}/{kind}" for kind in KINDS for mix in MIXES if mix != "a0-e1"]  # of which nobody would be left
    every = [cell for cell in tables.get(ALL, ()) if cell.run.label in [f"{label}/fedbrb" for label in wanted]]
    return every + [cell for cell in tables.get(WITHOUT, ()) if cell.run.label in wanted]


def draw_excluded(tables: Tables) -> Any:
    """FedBRB Figure 6: mean and single seeds, with the smallest clients' updates and without."""
    cells = {cell.run.label: cell for cell in excluded_cells(tables) if cell.records}
    kinds = [kind for kind in KINDS if any(f"/{kind}" in label for label in cells)]
    figure, plots = new_panels(1, len(kinds), 3.2, 2.8)
    for plot, kind in zip(plots[0], kinds, strict=True):
        for position, mix in enumerate(MIXES):
            for shift, ending, colour, title in WAYS:
                cell = cells.get(f"{mix}/{kind}{ending}")
                if cell:
                    plot.plot([position + shift] * len(cell.final), cell.final, ".", color=colour, markersize=4)
                    plot.plot(position + shift, mean(cell.final), "o", color=colour, label=title)
        _label_mixes(plot, kind)
    return figure


def share_trained(plan: Plan, name: str, tensor: str, rounds: Sequence[int]) -> list[NDArray[np.float64]]:
    """For each of these numbers of rounds, in which share of them each weight of a tensor was trained.

    One client of capacity 1/4 trains in each round.
    """
    counts = torch.zeros(plan.shapes[tensor][:2])
    found = []
    for round, (task,) in enumerate(replay(method(name), plan, [[(0, CAPACITY)]] * max(rounds))):
        out, into = task.index[tensor][:2]
        counts[out[:, None], into] += 1
        if round + 1 in rounds:
            found.append((counts / (round + 1)).double().numpy())
    return found


def draw_coverage(tables: Tables) -> Any:
    """FedBRB Figure 3d, for every method it compares."""
    del tables
    plan = trace(build(MODEL), example_inputs(MODEL))
    tensor = [name for name, shape in plan.shapes.items() if shape[:2] == (512, 512)][-1]
    grids, columns = {}, []
    for column, name in enumerate(METHODS):
        frames = share_trained(plan, name, tensor, ROUNDS)
        share = float(np.mean(frames[-1] > 0))
        columns.append(f"{method(name).title}, {100 if share == 1 else min(100 * share, 99.9):.3g} %")
        for row, frame in enumerate(frames):
            grids[row, column] = pool(torch.from_numpy(frame), 128).numpy()
    rows = [f"after {rounds} rounds" for rounds in ROUNDS]
    return heat_maps(grids, columns, rows, "a 512 × 512 tensor of PreResNet18, one client of width 1/4 a round")


def _number(value: float) -> str:
    return f"{value:g}"
