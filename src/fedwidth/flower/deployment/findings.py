"""Lines of a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One line; notes say what is so, wrongs what must change."""

    kind: Literal["ok", "note", "wrong"]
    text: str

    def __str__(self) -> str:
        return f"{self.kind:>5}  {self.text}"


def ok(text: str) -> Finding:
    """Something is in order."""
    return Finding("ok", text)


def note(text: str) -> Finding:
    """Something that need not be wrong."""
    return Finding("note", text)


def wrong(text: str) -> Finding:
    """Something that must change."""
    return Finding("wrong", text)
