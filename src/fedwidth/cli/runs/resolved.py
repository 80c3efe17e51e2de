"""What only its model can tell of a run, told before anything is compared, added or shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from fedwidth.analysis.yardsticks import missing, why_none, yardsticks
from fedwidth.cli.runs.planned_run import PlannedRun
from fedwidth.errors import FedwidthError
from fedwidth.run.cache import Cache
from fedwidth.settings import Settings


def resolve_runs(runs: Sequence[PlannedRun], cache: Cache) -> list[PlannedRun]:
    """The runs with the settings that their folders have: budgets have come to capacities there."""
    found = []
    for run in runs:
        with naming(run.label, first=run is runs[0]):
            found.append(replace(run, settings=cache.resolved(run.settings)))
    return found


def find_yardsticks(
    runs: Mapping[str, Settings], seeds: Sequence[int], cache: Cache
) -> dict[str, tuple[str, Settings]]:
    """The yardsticks that runs lack, by label, each with its title: of the devices that budgets come to.

    Where budgets come to other devices with other seeds, it is those of the first seed. Where no run has any, a line
    says why.
    """
    found: dict[str, Settings] = {}
    for label, settings in runs.items():
        with naming(label, first=not found):
            found[label] = cache.resolved(replace(settings, seed=seeds[0]) if seeds else settings)
    if not any(map(yardsticks, found.values())):
        print(f"No yardsticks are added: {why_none(next(iter(found.values())))}.")
    return {title: (title, settings) for title, settings in missing(found).items()}


@contextmanager
def naming(label: str, *, first: bool) -> Iterator[None]:
    """What is wrong with a run says which one it is, unless it is the first: of that one a command is about."""
    try:
        yield
    except FedwidthError as error:
        if first:
            raise
        raise type(error)(f"run '{label}': {error}") from error.__cause__
