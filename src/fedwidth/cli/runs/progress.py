"""Progress of one or several runs: round, accuracy, time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from fedwidth.run.summary import describe_score

Line = dict[str, Any]


class ProgressDisplay:
    """A bar for each run on a terminal; elsewhere (a log file) one line for each finished run."""

    def __init__(self, titles: Sequence[str], rounds: Sequence[int], progress: Progress) -> None:
        self.titles = titles
        self.progress = progress
        self.tasks = [
            progress.add_task(escape(title), total=total, accuracy="", clients="", start=False)
            for title, total in zip(titles, rounds, strict=True)
        ]

    def start(self, number: int) -> None:
        """Show that a run begins."""
        self.progress.start_task(self.tasks[number])

    def update(self, number: int) -> Callable[[Line], None]:
        """A function to be called with the metrics of each round that a run has finished."""

        def call(line: Line) -> None:
            fields: dict[str, Any] = {"completed": line["round"], "clients": ""}
            if accuracy := describe_score(line):
                fields["accuracy"] = accuracy
            self.progress.update(self.tasks[number], **fields)

        return call

    def clients(self, number: int) -> Callable[[int, int], None]:
        """A function to be called while a round goes on, with how many of its clients have trained, and of how many."""

        def call(done: int, clients: int) -> None:
            self.progress.update(self.tasks[number], clients=f"{done}/{clients} clients")

        return call

    def finish(self, number: int, line: Line) -> None:
        """Show that a run is done; `line` is its last round."""
        self.update(number)(line)
        console = self.progress.console
        if not console.is_terminal:
            console.print(
                f"{self.titles[number]}: {line['round']} rounds, {describe_score(line)}, {line['seconds']:.1f} s",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )


class _StateColumn(ProgressColumn):
    """Clients of the round under way and the last accuracy: one column, as an empty one would take room."""

    def render(self, task: Task) -> Text:
        """What there is of the two."""
        return Text(" ".join(filter(None, (task.fields["clients"], task.fields["accuracy"]))))


@contextmanager
def show_progress(titles: Sequence[str], rounds: Sequence[int]) -> Iterator[ProgressDisplay]:
    """Show the progress of these runs on standard error while the body runs."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        _StateColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield ProgressDisplay(titles, rounds, progress)
