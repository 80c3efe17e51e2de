"""Text from outside, made safe to print: nobody's log line is forged, and no terminal is told anything."""

from __future__ import annotations

LONGEST = 300


def printable(text: object, most: int = LONGEST) -> str:
    """The text in one line: what is not a visible character or a plain space is written as its code.

    Line ends, escape codes and marks that turn the direction of writing are such; a long text is cut.

    >>> print(printable("weight\\nround 2: all is well \\x1b[2J\\u202e"))
    weight\\nround 2: all is well \\x1b[2J\\u202e
    >>> printable("ab" * 400, most=5)
    'ababa…'
    """
    whole = str(text)
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in whole[: most + 1])
    return shown if len(shown) <= most else f"{shown[:most]}…"
