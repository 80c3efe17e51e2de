"""What the site needs beyond Markdown, done by mkdocs while it builds; the pages stay readable as plain files.

- CONTRIBUTING.md, CHANGELOG.md and the programs in examples/ become pages, and links to them lead there.
- ```math blocks (LaTeX) become MathML, which browsers draw without a script or a font from elsewhere.
- `Title: folder/*` in the navigation stands for the pages of a folder.
- Marks for the tests (```console quick) are taken out.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ("own_model", "one_round_by_hand", "new_method")
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"} | {
    f"examples/{name}.py": f"examples.md#{name}" for name in EXAMPLES
}
LINK = re.compile(r"(\]\()([^)\s#]+)")
MATH = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARKS = re.compile(r"^```(\w+) [\w ]+$", re.MULTILINE)


def on_config(config):
    """Write out the folders of the navigation, the folder's README first."""
    for section in config.nav:
        for entry in next(iter(section.values())):
            for title, target in entry.items() if isinstance(entry, dict) else ():
                if isinstance(target, str) and target.endswith("/*"):
                    found = sorted(
                        (ROOT / "docs" / target[:-2]).glob("*.md"), key=lambda page: (page.stem != "README", page)
                    )
                    entry[title] = [page.relative_to(ROOT / "docs").as_posix() for page in found]
    return config


def on_files(files, config):
    """Add the pages made from files outside docs/."""
    for source in ("CONTRIBUTING.md", "CHANGELOG.md"):
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, PAGES[source], content=text))
    files.append(File.generated(config, "examples.md", content=_examples()))
    return files


def on_page_markdown(markdown, page, **_):
    """Links out of docs/ to the pages made of them, equations to MathML, marks away."""
    folder = posixpath.dirname(page.file.src_uri)
    home = "" if page.file.generated_by else posixpath.join("docs", folder)  # where the page's links start from

    def inside(link):
        path = posixpath.normpath(posixpath.join(home, link[2]))
        if path not in PAGES and (home or not path.startswith("docs/")):
            return link[0]
        return link[1] + posixpath.relpath(PAGES.get(path, path.removeprefix("docs/")), folder or ".")

    text = LINK.sub(inside, MATH.sub(_mathml, markdown))
    return MARKS.sub(r"```\1", text)


def _mathml(block):
    return f'<div class="equation">{convert(block[1].strip(), display="block")}</div>'


def _examples():
    """The programs of examples/, each with the first paragraph of its docstring above it."""
    parts = ["# Examples\n\nThree short programs; the tests run them.\n"]
    for name in EXAMPLES:
        code = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
        title = name.replace("_", " ").capitalize()
        about = ast.get_docstring(ast.parse(code)).split("\n\n")[0]
        parts.append(f'## {title} {{ #{name} }}\n\n{about}\n\n```python title="examples/{name}.py"\n{code}```\n')
    return "\n".join(parts)
