"""The documentation hangs together: links, navigation, pictures, tables from the code, and the site as a whole."""

from __future__ import annotations

import ast
import importlib.util
import os
import pkgutil
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from doc_pages import DOCS, LINK, PAGES, ROOT, page_name, prose_of

from fedwidth.methods import methods

every_page = pytest.mark.parametrize("page", PAGES, ids=page_name)


def script(name: str):
    """A program of docs/, as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@every_page
def test_links_lead_somewhere(page):
    for target in LINK.findall(prose_of(page)):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page_name(page)} links to {target}"


@every_page
def test_pictures_say_what_they_show(page):
    assert not re.findall(r"!\[\s*\]", prose_of(page)), "a picture without a text for those who do not see it"


@pytest.mark.parametrize("name", sorted(methods()))
def test_a_method_page_has_picture_equation_and_the_options_of_the_code(name):
    page = DOCS / "methods" / f"{name}.md"
    text = page.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `([^`]*)` \| ([^|]*) \| [^|]+ \|$", text, re.MULTILINE)
    stated = {option: (ast.literal_eval(default), allowed.strip()) for option, default, allowed in rows}
    assert stated == {key: (option.default, option.allowed) for key, option in methods()[name].options.items()}
    assert f"](../images/methods/{name}.svg)" in text
    assert "```math\n" in text
    assert f"]({name}.md)" in (page.parent / "README.md").read_text(encoding="utf-8")


def test_every_page_can_be_reached_from_the_index():
    seen, queue = set(), [DOCS / "index.md"]
    while queue:
        page = queue.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        queue += [(page.parent / target).resolve() for target in LINK.findall(prose_of(page)) if "://" not in target]
    assert set(PAGES) - {ROOT / "README.md"} <= seen


def test_every_page_is_in_the_navigation():
    named = re.findall(r"[\w./-]+\.md|[\w-]+/\*", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    for page in DOCS.rglob("*.md"):
        path = page.relative_to(DOCS)
        assert path.as_posix() in named or f"{path.parent}/*" in named, f"mkdocs.yml does not name {path}"


def test_pictures_are_those_of_the_code():
    pictures = script("make_pictures")
    drawn = pictures.draw_all()
    stored = {path.name: path.read_text(encoding="utf-8") for path in pictures.FOLDER.glob("*.svg")}
    assert drawn.keys() == stored.keys()
    for name, text in drawn.items():
        assert text == stored[name], f"{name} has changed: run `make pictures`"
        assert len(text) < 60_000


def test_the_picture_of_fedrolex_shows_its_window():
    pictures = script("make_pictures")
    rolex = methods()["fedrolex"]
    for round, tasks in enumerate(pictures.rounds_of(rolex, (1 / 4,))):
        kept = {round % 8, (round + 1) % 8}
        expected = {(row, column) for row in kept for column in kept}
        assert {tuple(cell) for cell in pictures.trained(rolex, tasks, round).nonzero().tolist()} == expected


@pytest.mark.parametrize("name", ["settings.md", "command-line.md", "rooms.md", "support.md"])
def test_tables_are_those_of_the_code(name):
    tables = script("make_tables")
    page = (DOCS / name).read_text(encoding="utf-8")
    assert tables.with_text(page, tables.TABLES[name]()) == page, f"docs/{name} is out of date: run `make pictures`"


def test_the_reference_names_things_that_exist():
    named = [
        target
        for page in (DOCS / "reference").glob("*.md")
        for target in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(named) > 40
    for target in named:
        if target.startswith(("fedwidth.deployment.", "fedwidth.flower.")) and importlib.util.find_spec("flwr") is None:
            continue
        assert pkgutil.resolve_name(target).__doc__, target


def test_the_site_builds_without_a_warning_and_without_the_network(tmp_path):
    mkdocs = next((p for p in (ROOT / ".venv-docs/bin/mkdocs", shutil.which("mkdocs")) if p and Path(p).exists()), None)
    if mkdocs is None:
        pytest.skip("mkdocs is not installed; `make docs` makes an environment for it")
    built = subprocess.run(
        [mkdocs, "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    for page in (tmp_path / "site").rglob("*.html"):
        fetched = re.findall(r'(?:src|<link[^>]* href)="(?:https?:)?//[^"]*"', page.read_text(encoding="utf-8"))
        assert not fetched, f"{page.name} fetches {fetched}"
