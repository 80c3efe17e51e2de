"""The documentation is executed: every block of code on every page. `python tests/docs/doc_runs.py` lists them.

- ```python blocks run, page by page in one namespace; with `>>>` they are doctests. One with a title is a file of that
  name, which the page's other blocks may import.
- ```toml blocks are recipes: each is saved under its title and trained.
- ```console blocks: every command runs, page by page in one folder. `fedwidth` commands that train do so with one
  round, a small model and two seeds, on stand-ins for the data sets (doc_data.py). Marked `quick` a command runs as it
  stands, and its output is compared. `make`, Ray and Flower have files of their own beside this one (test_docs_*.py),
  the last two in environments of their own.
- `pip install` runs with a folder in place of the index on the network.
- The other code of the site: programs (test_examples.py) and examples in docstrings (pytest runs them).
"""

from __future__ import annotations

import doctest
import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request

import pytest
import torch
from doc_data import use, write_data
from doc_pages import PAGES, ROOT, SHELLS, Block, blocks_of, commands_of, page_name, prose_of
from doc_runs import LANGUAGES, MARKS, NO_CODE, SUITES, commands_in, made_small, suite_of, suites_of

import fedwidth
from fedwidth.cli.entry import run_command
from fedwidth.core.submodel import state_of
from fedwidth.devices.budget import read_devices
from fedwidth.plan.rules import registry
from fedwidth.reproduce.records import read_all
from zoo.cases import ZOO

OPTIONAL = ("transformers",)
"""Packages that pages show and fedwidth does without."""
LOOSE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
every_page = pytest.mark.parametrize("page", PAGES, ids=page_name)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("stand-ins"))


def skip_without(page):
    """Skip a page that shows a package which fedwidth does without and which is not here."""
    for name in OPTIONAL:
        if any(re.search(rf"^(from|import) {name}\b", block.text, re.MULTILINE) for block in blocks_of(page)):
            pytest.importorskip(name, reason=f"{name} is not installed, and {page_name(page)} shows it")


@pytest.fixture
def folder(data, tmp_path, monkeypatch):
    """The folder in which a page's commands run, one after the other."""
    monkeypatch.chdir(tmp_path)
    use(data, monkeypatch)
    (tmp_path / "DIR").symlink_to(data)  # as pages call the reader's folder of data
    (tmp_path / "docs").mkdir()
    (tmp_path / "results").mkdir()
    shutil.copy(ROOT / "results" / "coverage.json", tmp_path / "results")  # which takes a minute to measure
    return tmp_path


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Modules of the folder can be imported, and are forgotten afterwards."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@every_page
def test_every_block_is_run_by_a_suite(page):
    fences = len(re.findall(r"^\s*```", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert fences == 2 * len(blocks_of(page)), "a block is indented or not closed, so no test sees it"
    assert not re.findall(r"\n\n(?: {4}|\t).*", prose_of(page)), "code without a fence, so no test sees it"
    for block in blocks_of(page):
        where = f"{page_name(page)}:{block.line}"
        assert block.language in LANGUAGES, where
        assert set(block.marks) <= MARKS, where
        assert not block.marks or {command.program for command in commands_of(block)} == {"fedwidth"}, where
        if block.language not in NO_CODE:
            assert suites_of(block) <= SUITES.keys(), f"{where}: no suite runs all of it"
        assert block.language not in SHELLS or commands_of(block), f"{where}: no command"


@pytest.mark.parametrize(
    "text", ["ssh node ray start", "python train.py", "OMP_NUM_THREADS=1 fedwidth run", "ray start"]
)
def test_what_nothing_runs_is_found_out(text):
    assert suites_of(Block("console", (), "", f"$ {text}\n", 1)) == {None}


def test_the_suites_are_targets_that_run_the_documentation():
    makefile = (ROOT / "Makefile").read_text()
    for target, files in SUITES.items():
        recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)[1]
        named = re.findall(r"tests/\S+", recipe)
        assert not named or set(files) <= set(named), f"make {target} must run {files}"  # none named: all are run
        assert all((ROOT / file).exists() for file in files)


def test_packages_are_installed_as_the_pages_say(tmp_path):
    """Out of a folder with the package instead of an index on the network, and without what it depends on."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    quiet = {**os.environ, "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    make = ["pip", "wheel", "--quiet", "--no-build-isolation", "--wheel-dir", "wheels", "."]
    subprocess.run([sys.executable, "-m", *make], cwd=tmp_path, env=quiet, check=True, timeout=240)
    commands = list(commands_in("test", "pip"))
    assert commands
    for number, (page, _, command) in enumerate(commands):
        folder = tmp_path / f"installed-{number}"
        here = {**quiet, "PIP_FIND_LINKS": str(tmp_path / "wheels"), "PIP_TARGET": str(folder)}
        words = [sys.executable, "-m", *command.words]
        done = subprocess.run(words, cwd=tmp_path, env=here, capture_output=True, text=True, timeout=240)
        where = f"{page_name(page)}:{command.line}: {command}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, where
        assert "does not provide the extra" not in done.stdout + done.stderr, where
        assert (folder / "fedwidth" / "__init__.py").exists(), where


@pytest.mark.usefixtures("modules")
def test_the_choice_by_the_state_that_a_page_shows_is_one_for_every_model(tmp_path):
    """With fused tensors, gates, heads, tied weights, and without biases."""
    write_modules(ROOT / "docs" / "own-method.md", tmp_path)
    largest = fedwidth.method("largest:METHOD")
    for name, case in ZOO.items():
        model = case.full()
        plan = fedwidth.trace(model, case.inputs(), output=case.output)
        index = largest.select(plan, capacity=0.5, state=state_of(model))
        assert index.counts == plan.counts(0.5), name
        fedwidth.narrow(model, plan, index)


@every_page
@pytest.mark.usefixtures("modules")
def test_python_blocks_run(page, tmp_path, monkeypatch):
    skip_without(page)
    monkeypatch.chdir(tmp_path)
    write_modules(page, tmp_path)
    namespace = {"__name__": "__page__"}
    runner = doctest.DocTestRunner(optionflags=LOOSE, verbose=False)
    monkeypatch.setattr(registry, "RULES", dict(registry.RULES))  # a page shows how to add one
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for block in blocks_of(page):
            if block.language != "python" or suites_of(block) != {"test"}:
                continue
            if block.title:
                importlib.import_module(block.title.removesuffix(".py"))
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


def write_modules(page, folder):
    """Save the page's programs under their titles."""
    for block in blocks_of(page):
        if block.language == "python" and block.title and suites_of(block) == {"test"}:
            (folder / block.title).write_text(block.text, encoding="utf-8")


@every_page
@pytest.mark.usefixtures("modules")
def test_recipes_and_commands_run_and_print_what_the_page_says(page, folder, capsys):
    skip_without(page)
    write_modules(page, folder)
    for block in blocks_of(page):
        if block.language == "toml":
            file = folder / (block.title or f"line-{block.line}.toml")
            file.write_text(block.text, encoding="utf-8")
            if block.title == "devices.toml":  # what devices can spend, and no recipe
                assert read_devices(file)
                continue
            assert run_command(made_small(["run", file.name, "--out", f"runs/as-shown-{block.line}"])) == 0
            capsys.readouterr()
        for command in commands_of(block):
            if command.program == "fedwidth" and suite_of(command) == "test":
                run_and_compare(page, command, folder, capsys, quick="quick" in block.marks)


SHORT = {
    "docs/other-tasks.md": {"houses.toml": "a regression", "reviews.toml": "text with masks", "spots.toml": "pixels"},
    "docs/bring-your-own-data.md": {"scans.toml": "data on disk"},
}
"""Recipes of pages that say how little it takes, each followed by the same in Python."""
MAX_RECIPE, MAX_PROGRAM = 25, 15
"""Lines."""


@pytest.mark.parametrize(("name", "title"), [(name, title) for name, titles in SHORT.items() for title in titles])
@pytest.mark.usefixtures("modules")
def test_other_tasks_take_a_short_recipe_or_a_short_program(name, title, tmp_path, monkeypatch):
    """The program runs by itself, in no more lines than these."""
    page = ROOT / name
    skip_without(page)
    monkeypatch.chdir(tmp_path)
    write_modules(page, tmp_path)
    blocks = blocks_of(page)
    (at,) = (number for number, block in enumerate(blocks) if block.title == title)
    program = next(block.text for block in blocks[at:] if block.language == "python")
    assert len(blocks[at].text.splitlines()) <= MAX_RECIPE
    assert len(program.splitlines()) <= MAX_PROGRAM
    namespace = {"__name__": "__page__"}
    exec(compile(program, page, "exec"), namespace)
    assert namespace["result"].metrics[-1]["train_loss"] > 0


def run_and_compare(page, command, folder, capsys, *, quick):
    """Run a command of the page, and look at what it left."""
    arguments = list(command.words[1:])
    if arguments[0] == "view":
        watch(arguments, folder)
        return
    code = run_command(arguments if quick else made_small(arguments))
    printed = capsys.readouterr()
    where = f"{page_name(page)}:{command.line}: {command}\n{printed.out}{printed.err}"
    assert code == (2 if command.refused else 0), where
    said = printed.err if command.refused else printed.out
    if quick and command.output.strip():
        assert doctest.OutputChecker().check_output(command.output, said, LOOSE), where
    if arguments[0] in ("run", "sweep") and not quick:
        assert "report: " in said, where
    if arguments[0] == "reproduce":
        assert " 0 remain" in said, where
        assert read_all(folder / "results"), "a run is recorded"


def watch(arguments, folder):
    """Start the live view, on any free port; fetch the page from the address it prints; end it as a reader would."""
    started = [sys.executable, "-m", "fedwidth", *arguments, "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "no_proxy": "127.0.0.1"}
    with subprocess.Popen(started, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().split()[0]
            with urllib.request.urlopen(address, timeout=20) as answer:
                assert "FedRolex" in answer.read().decode()
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
