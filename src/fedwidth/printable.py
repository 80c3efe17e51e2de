"""Text that comes from outside, made safe to print: it can neither forge a line of the log nor command a terminal."""

from __future__ import annotations

MAX_LENGTH = 300
"""Characters after which a text is cut."""


def printable(text: object, max_length: int = MAX_LENGTH) -> str:
    """The text in one line, in which every character that is neither visible nor a plain space is written as its code.

    Line ends, escape codes and marks that turn the direction of writing are such characters. A long text is cut.

    >>> print(printable("weight\\nround 2: all is well \\x1b[2J\\u202e"))
    weight\\nround 2: all is well \\x1b[2J\\u202e
    >>> printable("ab" * 400, max_length=5)
    'ababa…'
    """
    whole = str(text)
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in whole[: max_length + 1])
    return shown if len(shown) <= max_length else f"{shown[:max_length]}…"
