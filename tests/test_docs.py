"""The documentation is executed.

- ```python blocks run, page by page in one namespace; with `>>>` they are doctests.
- ```console and ```bash blocks: every `fedwidth` command is parsed, its recipe and settings are checked, `make` targets
  and example files must exist. A block marked ```console quick runs, and its output is compared.
- Links inside the repository lead somewhere, and the option tables of the methods are those of the code.
"""

from __future__ import annotations

import ast
import doctest
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import typer

from fedwidth import config
from fedwidth.cli import UsageError, app, run_command
from fedwidth.methods import method, methods

ROOT = Path(__file__).resolve().parent.parent
PAGES = [p for p in (ROOT / "README.md", ROOT / "CONTRIBUTING.md") if p.exists()] + sorted(
    (ROOT / "docs").rglob("*.md")
)
SHELLS = ("console", "bash", "sh", "shell", "")
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")
LOOSE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


every_page = pytest.mark.parametrize("page", PAGES, ids=page_name)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    marks: tuple[str, ...]
    text: str
    line: int


@dataclass(frozen=True)
class Command:
    """A line of a shell block, and what the page says it prints."""

    words: tuple[str, ...]
    output: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(found[1], tuple(found[2].split()), found[3], text.count("\n", 0, found.start()) + 2)
        for found in FENCE.finditer(text)
    ]


def commands_of(block: Block) -> list[Command]:
    """The commands of a shell block; with `$` prompts the other lines are output."""
    lines = block.text.replace("\\\n", "  ").splitlines()
    prompts = any(line.startswith("$ ") for line in lines)
    commands: list[Command] = []
    for number, line in enumerate(lines):
        if prompts and not line.startswith("$ "):
            if commands:
                last = commands.pop()
                commands.append(Command(last.words, f"{last.output}{line}\n", last.line))
            continue
        words = shlex.split(line.removeprefix("$ "), comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        for sign in ("|", ">", "&&"):
            words = words[: words.index(sign)] if sign in words else words
        if words:
            commands.append(Command(tuple(words), "", block.line + number))
    return commands


def fedwidth_arguments(command: Command) -> list[str] | None:
    """What is handed to `fedwidth`, or None for another program."""
    words = list(command.words)
    if words[0] == "fedwidth":
        return words[1:]
    return words[3:] if words[1:3] == ["-m", "fedwidth.cli"] else None


def check_command(arguments: list[str]) -> None:
    """The command and its options exist and are complete; recipes and settings are right."""
    group = typer.main.get_command(app)
    with group.make_context("fedwidth", list(arguments), resilient_parsing=True) as top:
        if arguments[0].startswith("-"):
            return
        name, command, rest = group.resolve_command(top, list(arguments))
        assert command is not None
        with command.make_context(name, rest, parent=top) as context:
            given = context.params
    if name in ("run", "sweep"):
        named = given["recipe"] or "quickstart"
        recipe = named if named in config.recipe_names() else "quickstart"
        assert recipe == named or named.endswith(".toml"), f"there is no recipe {named}"
        axes = [text.partition("=") for text in given.get("over") or []]
        over = [f"{key}={value}" for key, _, values in axes for value in values.split(",")[:1]]
        found = config.read_settings(recipe, [*(given["changes"] or []), *over])
        if given.get("only") and recipe == named:
            found.only(given["only"])
    if name == "coverage":
        pairs = [text.partition("=") for text in given["method_options"] or []]
        for key, _, _ in pairs:
            assert key in method(given["method"]).options
        method(given["method"])


@every_page
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__page__"}
    runner = doctest.DocTestRunner(optionflags=LOOSE, verbose=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for block in blocks_of(page):
            if block.language != "python":
                continue
            where = f"{page_name(page)}:{block.line}"
            if ">>> " not in block.text:
                exec(compile("\n" * (block.line - 1) + block.text, page, "exec"), namespace)
                continue
            test = doctest.DocTestParser().get_doctest(block.text, namespace, where, str(page), block.line - 1)
            said: list[str] = []
            runner.run(test, out=said.append, clear_globs=False)
            assert not said, "".join(said)
            namespace.update(test.globs)


@every_page
def test_commands_exist(page):
    makefile = (ROOT / "Makefile").read_text()
    for block in blocks_of(page):
        for command in commands_of(block) if block.language in SHELLS else []:
            where = f"{page_name(page)}:{command.line}: {' '.join(command.words)}"
            arguments = fedwidth_arguments(command)
            if arguments is not None and not command.output.startswith("error:"):
                try:
                    check_command(arguments)
                except (UsageError, ValueError) as error:
                    pytest.fail(f"{where}: {error}")
            elif command.words[0] == "make":
                for target in [word for word in command.words[1:] if "=" not in word]:
                    assert re.search(rf"^{target}:", makefile, re.MULTILINE), where
            elif command.words[0].startswith("python") and command.words[1:]:
                scripts = [word for word in command.words[1:] if word.endswith(".py")]
                assert all((ROOT / script).exists() for script in scripts), where


@every_page
def test_quick_commands_print_what_the_page_says(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for block in blocks_of(page):
        if block.language not in SHELLS or "quick" not in block.marks:
            continue
        for command in commands_of(block):
            arguments = fedwidth_arguments(command)
            assert arguments is not None, "only fedwidth commands can be marked quick"
            code = run_command(arguments)
            printed = capsys.readouterr()
            where = f"{page_name(page)}:{command.line}: {' '.join(command.words)}\n{printed.out}{printed.err}"
            refused = command.output.startswith("error:")
            assert code == (2 if refused else 0), where
            said = printed.err if refused else printed.out
            if command.output.strip():
                assert doctest.OutputChecker().check_output(command.output, said, LOOSE), where


@every_page
def test_links_lead_somewhere(page):
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in LINK.findall(prose):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page_name(page)} links to {target}"


@pytest.mark.parametrize("name", sorted(methods()))
def test_a_method_page_lists_the_options_of_the_code(name):
    page = ROOT / "docs" / "methods" / f"{name}.md"
    rows = re.findall(
        r"^\| `(\w+)` \| `([^`]*)` \| ([^|]*) \| [^|]+ \|$", page.read_text(encoding="utf-8"), re.MULTILINE
    )
    stated = {option: (ast.literal_eval(default), allowed.strip()) for option, default, allowed in rows}
    assert stated == {key: (option.default, option.allowed) for key, option in methods()[name].options.items()}
    assert f"]({name}.md)" in (page.parent / "README.md").read_text(encoding="utf-8")


def test_every_page_can_be_reached_from_the_index():
    seen, queue = set(), [ROOT / "docs" / "index.md"]
    while queue:
        page = queue.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        targets = LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
        queue += [(page.parent / target).resolve() for target in targets if "://" not in target]
    assert set(PAGES) - {ROOT / "README.md"} <= seen
