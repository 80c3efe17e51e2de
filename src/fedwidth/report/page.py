"""report.html: everything the page shows as one block of data, and the page around it, in one file."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedwidth.errors import OptionError
from fedwidth.files import make_folder_of, write_whole
from fedwidth.report.describe import Description, describe
from fedwidth.report.entries import group_runs
from fedwidth.report.rebuild import ModelRebuilder
from fedwidth.report.runs import read_runs
from fedwidth.run.folder import refuse_files_of_run

SCRIPTS = (
    "dom.js",
    "chart.js",
    "coverage.js",
    "views.js",
    "compare.js",
    "split.js",
    "attendance.js",
    "table.js",
    "live.js",
    "headline.js",
    "page.js",
)


def write_report(folders: Sequence[Path], out: Path, *, own_models: bool = False) -> Path:
    """Write one self-contained page about every run in these folders, and return its path.

    `own_models` also rebuilds models that a config names as package.module:factory, which imports that code.
    """
    refuse_files_of_run(Path(out), but="report.html")
    runs = read_runs(folders)
    if not runs:
        raise OptionError("a report needs at least one run folder")
    content = render(describe(group_runs(runs), folders=folders, rebuilder=ModelRebuilder(own_models=own_models)))
    make_folder_of(Path(out))
    write_whole(Path(out), content.encode("utf-8", "replace"))
    return Path(out)


def render(data: Description, *, live: str = "") -> str:
    """The page as text. Its scripts and styles are allowed by their hash, and nothing else may run or be fetched.

    A live page asks its server for the data again and again; `live` names the state of the data it is made with.
    """
    here = files("fedwidth.report") / "web"
    css = (here / "page.css").read_text(encoding="utf-8")
    js = "\n".join((here / name).read_text(encoding="utf-8") for name in SCRIPTS)
    js = f"(() => {{\n'use strict';\n{js}\n}})();"
    fetched = "; connect-src 'self'" if live else ""
    policy = f"default-src 'none'; script-src {_allowed(js)}; style-src {_allowed(css)}{fetched}; base-uri 'none'"
    first = data["entries"][data["comparison"]["lead"]]["label"] if data["entries"] else "waiting"
    title = data["comparison"]["title"] or first
    parts = {
        "title": html.escape(f"{title} · fedwidth"),
        "policy": f"{policy}; form-action 'none'",
        "css": css,
        "js": js,
        "live": html.escape(live),
        "data": embed(data),
    }
    page = (here / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], page)  # one pass: data is never searched


def embed(data: Any) -> str:
    """JSON that is safe inside a script element: no character of it can end the element or start another.

    >>> embed({"name": "</script>", "loss": float("nan")})
    '{"name":"\\\\u003c/script\\\\u003e","loss":null}'
    """
    text = json.dumps(_plain(data), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _allowed(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def _plain(data: Any) -> Any:
    """The same with None for what JSON has no word for, and whole floats as integers (they are shorter)."""
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_plain(value) for value in data]
    if isinstance(data, float):
        return (int(data) if data.is_integer() and abs(data) < 2**53 else data) if math.isfinite(data) else None
    return data
