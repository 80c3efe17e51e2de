"""The documentation is executed.

- ```python blocks run, page by page in one namespace; with `>>>` they are doctests.
- ```console and ```bash blocks: every `fedwidth` command runs, with fewer rounds and a smaller model. Marked `quick` it
  runs as it stands, and its output is compared. Marked `data`, `gpu` or `yours` (a file of the reader's) it cannot run
  here: the command is parsed, its recipe and settings are checked. `make` targets and example files must exist.
- ```toml blocks are read as recipes.
"""

from __future__ import annotations

import doctest
import re

import pytest
import torch
import typer

from doc_pages import PAGES, ROOT, SHELLS, blocks_of, commands_of, page_name
from fedwidth import config
from fedwidth.cli import UsageError, app, run_command
from fedwidth.methods import method

LANGUAGES = ("python", "toml", "math", "text", *SHELLS)
MARKS = {"quick", "data", "gpu", "yours"}
RUN_HERE = ("run", "sweep", "report", "methods", "plan", "cost", "coverage", "partition")
SMALL = ("rounds=1", "model.name=mlp", "engine=serial", "devices.per_round=2", "training.steps=1")
LOOSE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
every_page = pytest.mark.parametrize("page", PAGES, ids=page_name)


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


def made_small(arguments: list[str]) -> list[str]:
    """The same command with less to do."""
    if "--seeds" in arguments:
        place = arguments.index("--seeds") + 1
        arguments = [*arguments[:place], arguments[place][:3], *arguments[place + 1 :]]  # "1,2,3,4": two are enough
    if arguments[0] in ("run", "sweep"):
        return [*arguments, *(word for change in SMALL for word in ("--set", change))]
    if "--rounds" in arguments:
        place = arguments.index("--rounds") + 1
        return [*arguments[:place], "2", *arguments[place + 1 :]]
    return arguments


@every_page
def test_blocks_are_of_a_known_kind(page):
    fences = len(re.findall(r"^\s*```", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert fences == 2 * len(blocks_of(page)), "a block is indented or not closed, so no test sees it"
    for block in blocks_of(page):
        assert block.language in LANGUAGES, f"{page_name(page)}:{block.line}"
        assert set(block.marks) <= MARKS, f"{page_name(page)}:{block.line}"


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
def test_toml_blocks_are_recipes(page):
    for block in blocks_of(page):
        if block.language == "toml":
            assert config.read_settings(block.text).runs, f"{page_name(page)}:{block.line}"


@every_page
def test_commands_exist(page):
    makefile = (ROOT / "Makefile").read_text()
    for block in blocks_of(page):
        for command in commands_of(block) if block.language in SHELLS else []:
            where = f"{page_name(page)}:{command.line}: {' '.join(command.words)}"
            if command.arguments is not None and not command.output.startswith("error:"):
                try:
                    check_command(command.arguments)
                except (UsageError, ValueError) as error:
                    pytest.fail(f"{where}: {error}")
            elif command.words[0] == "make":
                for target in [word for word in command.words[1:] if "=" not in word]:
                    assert re.search(rf"^{target}:", makefile, re.MULTILINE), where
            elif command.words[0].startswith("python") and command.words[1:]:
                scripts = [word for word in command.words[1:] if word.endswith(".py")]
                assert all((ROOT / script).exists() for script in scripts), where


@every_page
def test_commands_run_and_print_what_the_page_says(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for block in blocks_of(page):
        if block.language not in SHELLS or set(block.marks) & {"data", "gpu", "yours"}:
            continue
        for command in commands_of(block):
            quick = "quick" in block.marks
            assert command.arguments is not None or not quick, "only fedwidth commands can be marked quick"
            if command.arguments is None or command.arguments[0] not in RUN_HERE:
                continue
            code = run_command(command.arguments if quick else made_small(command.arguments))
            printed = capsys.readouterr()
            where = f"{page_name(page)}:{command.line}: {' '.join(command.words)}\n{printed.out}{printed.err}"
            refused = command.output.startswith("error:")
            assert code == (2 if refused else 0), where
            said = printed.err if refused else printed.out
            if quick and command.output.strip():
                assert doctest.OutputChecker().check_output(command.output, said, LOOSE), where
