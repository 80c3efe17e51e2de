"""The pages name files, folders and modules where they are, and the page about rooms says what import-linter checks."""

from __future__ import annotations

import pkgutil
import re
import tomllib

import pytest
from doc_pages import DOCS, PAGES, ROOT, page_name, prose_of

PACKAGE = ROOT / "src" / "fedwidth"
CHANGELOG = ROOT / "CHANGELOG.md"
CODE = re.compile(r"`([^`\s]+)`")
FILE = re.compile(r"([\w./*-]+\.py)(?:::\S+)?")
FOLDERS = ("benchmarks/", "docs/", "examples/", "reproduction/", "src/", "tests/")
MODULE = re.compile(r"fedwidth(?:\.\w+)+")
MOVED = re.compile(r"^\| `(fedwidth\.[\w.]+)` \| `(fedwidth[\w.]*)` \|$", re.MULTILINE)
MAX_MODULES, MAX_FILES = 14, 17
LARGER = {"methods": 40, "plan": 23}
"""Rooms that have more: `methods` a file for each method."""
(CONTRACT,) = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]

every_page = pytest.mark.parametrize("page", [page for page in PAGES if page != CHANGELOG], ids=page_name)


@every_page
def test_files_are_where_the_page_says(page):
    """By the path from the top of the repository or from the package; tests by the name of their file alone.

    Pages of methods also name files of the published code, without a folder.
    """
    for code in CODE.findall(prose_of(page)):
        named = FILE.fullmatch(code)
        path = named[1] if named else code if code.startswith(FOLDERS) and "<" not in code else None
        if path is not None and not (page.parent.name == "methods" and "/" not in path):
            found = [*ROOT.glob(path.rstrip("/")), *PACKAGE.glob(path.rstrip("/"))]
            if path.startswith("test_"):
                found += (ROOT / "tests").rglob(path)
            assert found, f"{page_name(page)} names {path}, which does not exist"


@every_page
def test_modules_are_where_the_page_says(page):
    for code in CODE.findall(prose_of(page)):
        if MODULE.fullmatch(code):
            assert pkgutil.resolve_name(code), f"{page_name(page)} names {code}"


def test_the_changelog_says_where_modules_have_moved():
    moved = MOVED.findall(CHANGELOG.read_text(encoding="utf-8"))
    assert len(moved) > 10
    for old, new in moved:
        assert pkgutil.resolve_name(new), new
        with pytest.raises((ImportError, AttributeError)):
            pkgutil.resolve_name(old)


def test_every_room_has_a_layer():
    layers = {name for layer in CONTRACT["layers"] for name in re.split(r" [|:] ", layer)}
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert layers == rooms | modules
    assert len(modules) <= MAX_MODULES


def test_rooms_are_small():
    for room in PACKAGE.rglob("__init__.py"):
        files = sorted(path.name for path in room.parent.glob("*.py") if path != room)
        assert len(files) <= LARGER.get(room.parent.name, MAX_FILES), f"{room.parent.name}: {len(files)} files"


def test_the_page_names_who_looks_upwards():
    page = (DOCS / "rooms.md").read_text(encoding="utf-8")
    assert CONTRACT["ignore_imports"]
    for line in CONTRACT["ignore_imports"]:
        upwards = line.partition(" -> ")[0].removeprefix("fedwidth").removeprefix(".").replace(".", "/")
        assert f"`{upwards or '__init__'}.py`" in page
