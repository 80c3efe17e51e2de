"""What an examination of a deployment finds, one line each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One line: something is in order (ok), need not be wrong (note), or must change (wrong)."""

    kind: Literal["ok", "note", "wrong"]
    text: str

    def __str__(self) -> str:
        return f"{self.kind:>5}  {self.text}"


def ok(text: str) -> Finding:
    """A line about something that is in order."""
    return Finding("ok", text)


def note(text: str) -> Finding:
    """A line about something that need not be wrong."""
    return Finding("note", text)


def wrong(text: str) -> Finding:
    """A line about something that must change."""
    return Finding("wrong", text)
