"""Models by import path, as a user names one of his own."""

from __future__ import annotations

from zoo.problem_sequences import MarkedPooling


def words() -> MarkedPooling:
    """A model that reads words."""
    return MarkedPooling(16, 24)
