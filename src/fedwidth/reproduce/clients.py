"""How a finished run serves single clients, in few digits: what its record keeps of clients.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fedwidth.devices.capacity import Capacities

MAX_CLIENTS = 200
"""Of more clients a record keeps the mean alone."""

Clients = list[list[float | None]]
"""[accuracy, place of the capacity] of each client."""


def read_clients(folder: Path, mix: str | Sequence[float]) -> Clients | None:
    """[accuracy on its own data, place of its capacity in the mix] of each client of the run in this folder.

    An accuracy is None where a client has no test data, a capacity where it is drawn anew each round. None where the
    run did not write its clients down, or has many.
    """
    try:
        rows = json.loads((folder / "clients.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if len(rows) > MAX_CLIENTS:
        return None
    places = {capacity: place for place, capacity in reversed(list(enumerate(Capacities.parse(mix).values)))}
    return [
        [None if row["accuracy"] is None else round(row["accuracy"], 4), places.get(row["capacity"])] for row in rows
    ]
