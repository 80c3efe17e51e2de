"""How a finished run serves single clients, in few digits: what its record keeps of clients.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fedwidth.devices.capacity import Capacities

MAX_CLIENTS = 200
"""Where there are more clients, a record keeps their mean accuracy alone."""

Clients = list[list[float | None]]
"""For each client its accuracy and the number of its capacity in the mix."""


def read_clients(folder: Path, mix: str | Sequence[float]) -> Clients | None:
    """For each client of a run, its accuracy on its own data and the number of its capacity in the mix.

    An accuracy is None where a client has no test data, a capacity where it is drawn anew each round. All is None
    where the run did not write its clients down, or has many.
    """
    try:
        rows = json.loads((folder / "clients.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if len(rows) > MAX_CLIENTS:
        return None
    numbers = {capacity: number for number, capacity in reversed(list(enumerate(Capacities.parse(mix).values)))}
    return [
        [None if row["accuracy"] is None else round(row["accuracy"], 4), numbers.get(row["capacity"])] for row in rows
    ]
