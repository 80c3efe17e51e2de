"""The rounds that a run has opened, on disk before anything is opened: none is opened twice, also after a crash.

    opened.jsonl    {"round": 7, "attempt": 0, "clients": [0, 2, 3]}

A round that stands here and is not in the checkpoint was lost between its opening and its saving. Training would be the
same once more, so two openings with different survivors would show a single client's part: such a round is skipped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fedwidth.errors import StateError
from fedwidth.files import append_line

NAME, LOCK = "opened.jsonl", ".opened.lock"


class OpenedRounds:
    """The rounds that were opened, of the run in a folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._rounds = {number for number, _ in read_opened(self._path)}

    def __contains__(self, round: int) -> bool:
        return round in self._rounds

    def note(self, round: int, attempt: int, clients: Sequence[int]) -> None:
        """Write down, before it is, that a round is opened."""
        if round in self._rounds:
            raise StateError(f"round {round + 1} was opened before")
        line = {"round": round + 1, "attempt": attempt, "clients": list(clients)}
        append_line(self._path, json.dumps(line), lock=self._path.with_name(LOCK))
        self._rounds.add(round)


def read_opened(path: Path) -> list[tuple[int, int]]:
    """The rounds, counted from 0, and attempts of a file; a last line that a crash cut short was never acted on."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = []
    for number, line in enumerate(lines):
        try:
            entry = json.loads(line)
            found.append((int(entry["round"]) - 1, int(entry["attempt"])))
        except (ValueError, KeyError, TypeError):
            if number + 1 < len(lines):
                raise StateError(
                    f"line {number + 1} of {path} cannot be read: it says which rounds were opened"
                ) from None
    return found
