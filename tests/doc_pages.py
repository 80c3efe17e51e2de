"""Reading the documentation: its pages, their blocks of code, and the commands in them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
SHELLS = ("console", "bash", "sh", "shell", "")
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")


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

    @property
    def arguments(self) -> list[str] | None:
        """What is handed to `fedwidth`, or None for another program."""
        words = list(self.words)
        if words[0] == "fedwidth":
            return words[1:]
        return words[3:] if words[1:3] == ["-m", "fedwidth.cli"] else None


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose_of(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


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
