"""Write the tables of settings, commands, rooms, and of what trains what, into their pages, from the code.

    python docs/make_tables.py

Each page keeps its own text; what stands between `<!-- made by ... -->` and `<!-- end -->` is replaced.
A test compares.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from fedwidth.cli.entry import app
from fedwidth.config.schema import Key, keys, sections, shown

DOCS = Path(__file__).parent
PACKAGE = DOCS.parent / "src" / "fedwidth"
BEGIN, END = "<!-- made by docs/make_tables.py -->\n", "<!-- end -->"


def settings_text() -> str:
    """A table for every section of the settings."""
    parts = []
    for section, about in {"": "The run as a whole.", **sections()}.items():
        rows = [_setting(key) for name, key in keys().items() if name.rpartition(".")[0] == section]
        title = f"`[{section}]`" if section else "The run"
        parts.append(f"### {title}\n\n{about}\n\n" + _table(("key", "default", "meaning"), rows))
    return "\n".join(parts)


def _setting(key: Key) -> tuple[str, ...]:
    expected = "" if key.expected == "text" else f" ({key.expected})"
    return f"`{key.name}`", f"`{_toml(key.default)}`", key.help + expected


def _toml(value: Any) -> str:
    return "{}" if value == {} else shown(value)


def commands_text() -> str:
    """A table of the arguments and options of every command."""
    group: Any = typer.main.get_command(app)
    parts = []
    for name, command in group.commands.items():
        rows, words = [], []
        for option in command.params:
            if option.param_type_name == "argument":
                word = option.name.upper()
                words.append(word if option.required else f"[{word}]")
                rows.append((f"`{word}`", option.help or ""))
            else:
                rows.append((f"`{', '.join(option.opts)}`", _option_help(option)))
        usage = " ".join(["fedwidth", name, *words])
        # One line of help for everybody: what follows the first blank line is for --help.
        about = " ".join((command.help or "").split("\n\n")[0].split())
        parts.append(f"### `{usage}`\n\n{about}\n" + ("\n" + _table(("option", "meaning"), rows) if rows else ""))
    return "\n".join(parts)


def _option_help(option: Any) -> str:
    default = option.default
    plain = isinstance(default, (str, int, float, Path)) and not isinstance(default, bool) and default != ""
    said = [(option.help or "").rstrip("."), f"default {default}" if plain else ""]
    return "; ".join(part for part in said if part)


def rooms_text() -> str:
    """A table of the rooms of the package, layer by layer, each in the words of its own docstring."""
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = project["tool"]["importlinter"]["contracts"]
    rows = []
    for number, layer in enumerate(contract["layers"], start=1):
        for name in re.split(r" [|:] ", layer):
            rows += [(str(number), f"`{shown}`", about) for shown, about in _rooms(PACKAGE / name)]
    return _table(("layer", "room", "what it holds"), rows)


def _rooms(path: Path) -> Iterator[tuple[str, str]]:
    """A room and the rooms in it, or a module that stands alone, each with the first sentence of its docstring."""
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    shown = f"{path.relative_to(PACKAGE).as_posix()}{'/' if path.is_dir() else '.py'}"
    about = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    yield shown, " ".join(about.split("\n\n")[0].split())
    for inner in sorted(path.glob("*/__init__.py")):
        yield from _rooms(inner.parent)


def support_text() -> str:
    """What every column of the table answers for every method and task, and the reasons below it."""
    sys.path.append(str(DOCS.parent / "tests"))
    from fedwidth.methods import methods
    from support_table import COLUMNS, ENGINES_ASKED, TASKS, support

    reasons: dict[str, set[str]] = {}  # and the tasks that they are about, where not about all
    rows = []
    for name, method in methods().items():
        answers = {task: support(name, task) for task in TASKS}
        cells = []
        for column in COLUMNS:
            against = {task: _any(why, method.title) for task in TASKS if (why := answers[task][column]) is not None}
            for task, reason in against.items():
                reasons.setdefault(reason, set()).update([task] if len(against) < len(TASKS) else [])
            cells.append(_cell(against, list(reasons), len(TASKS)))
        rows.append((f"[{method.title}](methods/{name}.md)", *cells))
    notes = []
    for number, (reason, tasks) in enumerate(reasons.items(), start=1):
        about = f" ({', '.join(task for task in TASKS if task in tasks)})" if tasks else ""
        notes.append(f"{number}. {reason}{about}.\n")
    return (
        _table(("method", *(f"`{column}`" if column in ENGINES_ASKED else column for column in COLUMNS)), rows)
        + "\n"
        + "".join(notes)
    )


def _cell(against: dict[str, str], reasons: list[str], tasks: int) -> str:
    """One cell: yes; or no, where reasons are against all tasks, else some; with their numbers."""
    if not against:
        return "yes"
    numbers = sorted({reasons.index(reason) + 1 for reason in against.values()})
    return f"{'no' if len(against) == tasks else 'some'} ({', '.join(map(str, numbers))})"


def _any(reason: str, method: str) -> str:
    """A reason in words that are for any method, objective and engine."""
    found = reason.replace(method, "the method")
    found = re.sub(r"objective [\w-]+ has", "the objective has", found)
    found = re.sub(r"(Ray's workers|Flower's devices) do", "this engine does", found)
    return found if "." in found.split()[0] else found[0].upper() + found[1:]  # names of settings stay as they are


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def with_text(page: str, text: str) -> str:
    """The page with the part between the two marks replaced."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}"


TABLES = {
    "settings.md": settings_text,
    "command-line.md": commands_text,
    "rooms.md": rooms_text,
    "support.md": support_text,
}


def main() -> None:
    """Write them."""
    for name, write in TABLES.items():
        page = DOCS / name
        page.write_text(with_text(page.read_text(encoding="utf-8"), write()), encoding="utf-8")
        print(page.name)


if __name__ == "__main__":
    main()
