"""Which suite runs which code of the documentation, and how a command is run there.

    python tests/docs/doc_runs.py

prints it, block by block. The tests run by the same list, so what it says is run is run.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from doc_pages import PAGES, SHELLS, Block, Command, blocks_of, commands_of, page_name

SUITES = {
    "test": ("tests/docs/test_docs.py", "tests/docs/test_docs_make.py"),
    "test-slow": ("tests/docs/test_docs_make.py",),
    "test-flower": (
        "tests/docs/test_docs_flower.py",
        "tests/flower/test_strategy_app.py",
        "tests/flower/test_nvflare.py",
    ),
    "test-ray": ("tests/docs/test_docs_ray.py",),
    "test-export": ("tests/docs/test_docs_export.py",),
}
"""A target of the Makefile, and the files in it that run code of the documentation."""
NO_CODE = ("math",)
LANGUAGES = ("python", "toml", *SHELLS, *NO_CODE)
MARKS = {"quick"}
"""Run as it stands, and its output compared with the page's."""
IMPORTS_OTHERS = re.compile(r"^(from|import) (flwr|nvflare)\b", re.MULTILINE)
"""Python that needs a framework which the environment of `make test` has not."""
SLOW_TARGETS = {"check", "test-slow", "bench", "results"}

SMALL = ("rounds=1", "model.name=mlp", "devices.per_round=2", "training.steps=1", "device=cpu")
TRAINING = ("run", "sweep", "reproduce")


def suite_of(command: Command) -> str | None:
    """The suite that runs a command; None where none does."""
    if command.program == "make":
        return "test-slow" if set(command.words) & SLOW_TARGETS else "test"
    if command.program == "pip":
        return "test"
    if command.program != "fedwidth":
        return None
    if command.words[1] == "deploy":
        return "test-flower"
    if command.words[1] == "export" and set(command.words) & {"onnx", "executorch"}:
        return "test-export"
    if "--ray-address" in command.words or ("--engine", "ray") in zip(command.words, command.words[1:], strict=False):
        return "test-ray"
    return "test"


def suites_of(block: Block) -> set[str | None]:
    """The suites it takes to run a block."""
    if block.language == "python" and IMPORTS_OTHERS.search(block.text):
        return {"test-flower"}
    if block.language in ("python", "toml"):
        return {"test"}
    return {suite_of(command) for command in commands_of(block)}


def commands_in(suite: str, program: str) -> Iterator[tuple[Path, Block, Command]]:
    """The commands that a suite runs, in the order of the pages."""
    for page in PAGES:
        for block in blocks_of(page):
            for command in commands_of(block):
                if command.program == program and suite_of(command) == suite:
                    yield page, block, command


def pages_in(suite: str, program: str) -> list[Path]:
    """The pages that have such commands."""
    return list(dict.fromkeys(page for page, _, _ in commands_in(suite, program)))


def made_small(arguments: list[str]) -> list[str]:
    """The same `fedwidth` command with less to do: one round of one step of a small model, two seeds, on the CPU.

    A recipe of the page that names a model of its own keeps it.
    """
    if "--seeds" in arguments:
        at = arguments.index("--seeds") + 1
        arguments = [*arguments[:at], arguments[at][:3], *arguments[at + 1 :]]
    if arguments[0] in TRAINING:
        free = {"--packed", "--engine", "--ray-address"} & set(arguments)  # these choose the engine
        changes = SMALL if free else (*SMALL, "engine=serial")
        if any(names_own_model(word) for word in arguments):
            changes = tuple(change for change in changes if not change.startswith("model."))
        return [*arguments, *(word for change in changes for word in ("--set", change))]
    if "--rounds" in arguments:
        at = arguments.index("--rounds") + 1
        return [*arguments[:at], "2", *arguments[at + 1 :]]
    return arguments


def names_own_model(word: str) -> bool:
    """Whether a word is a recipe file here whose model is one of the page's own."""
    path = Path(word)
    if path.suffix != ".toml" or not path.is_file():
        return False
    return ":" in tomllib.loads(path.read_text(encoding="utf-8")).get("model", {}).get("name", "")


def main() -> None:
    """Print every block with the suite that runs it, and their numbers."""
    counts: Counter[str] = Counter()
    for page in PAGES:
        for block in blocks_of(page):
            if block.language in NO_CODE:
                continue
            suites = sorted(suite or "NOTHING RUNS IT" for suite in suites_of(block))
            shown = " and ".join(f"make {suite}" for suite in suites)
            counts[shown] += 1
            print(f"{page_name(page)}:{block.line}  {block.language}  {shown}")
    print(*(f"{number:4d}  {shown}" for shown, number in counts.items()), sep="\n")


if __name__ == "__main__":
    sys.exit(main())
