"""Show the doctests of a docstring as code: they stand among its sentences, and Markdown would take them for quotes."""

from __future__ import annotations

import re

import griffe

DOCTEST = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)


class FenceDoctests(griffe.Extension):
    """Puts every run of lines from `>>>` to the next empty one into a block of code."""

    def on_object(self, *, obj, **_):
        """Once for each module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(r"\n```pycon\n\g<0>\n```\n", obj.docstring.value)
