"""Reading the documentation: its pages, their blocks of code, and the commands in them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
SHELLS = ("console", "bash", "sh")
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")
TITLE = re.compile(r'title="([^"]*)"')


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    marks: tuple[str, ...]
    title: str
    """The file it is the content of, if the page says so."""
    text: str
    line: int


@dataclass(frozen=True)
class Command:
    """A line of a shell block, and what the page says it prints."""

    words: tuple[str, ...]
    output: str
    line: int

    @property
    def program(self) -> str:
        """What is called."""
        return self.words[0]

    @property
    def refused(self) -> bool:
        """Whether the page shows it as a mistake."""
        return self.output.startswith("error:")

    def __str__(self) -> str:
        return shlex.join(self.words)


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose_of(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    blocks = []
    for found in FENCE.finditer(text):
        title = TITLE.search(found[2])
        marks = tuple(TITLE.sub("", found[2]).split())
        line = text.count("\n", 0, found.start()) + 2
        blocks.append(Block(found[1], marks, title[1] if title else "", found[3], line))
    return blocks


def commands_of(block: Block) -> list[Command]:
    """The commands of a shell block; with `$` prompts the other lines are output."""
    if block.language not in SHELLS:
        return []
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
        if set(words) & {"|", ">", ">>", "<", "&", "&&", "||", ";"}:
            raise ValueError(f"line {block.line + number}: one plain command a line, or no test runs all of it: {line}")
        if words:
            commands.append(Command(tuple(words), "", block.line + number))
    return commands
