"""The wheel and the source distribution hold what they should, and the wheel works alone in an empty environment.

`make test-package` runs this where build and twine are installed. What is packed are the files that git knows, as they
are now, in a folder of their own: a file that is missing there is missing for everybody else, too.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OF_THE_REPOSITORY = {".ci/run", ".gitignore"}
"""What a packager has no use for."""
MADE_BY_SETUPTOOLS = {"PKG-INFO", "setup.cfg"}
MIN_RECIPES, MIN_METHODS = 40, 15
SMALL = ("rounds=2", "model.name=mlp", "devices.per_round=2", "training.steps=1")
pytestmark = pytest.mark.slow


def run(*words: object, cwd: Path, **environment: str) -> str:
    """Run a command that sees nothing of this source tree, and return what it printed."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYTEST", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env={**kept, **environment}, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tracked() -> set[str]:
    """The files of the repository, as git has them or would take them."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    return {name for name in listed.split("\0") if name and (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def packed(tracked, tmp_path_factory) -> Path:
    """A folder with the source distribution, and the wheel that was built from it."""
    pytest.importorskip("build", reason="build is not installed; `make test-package` makes an environment for it")
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("packed")
    for name in tracked:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, tree, cwd=out)
    return out


@pytest.fixture(scope="module")
def wheel(packed) -> zipfile.ZipFile:
    (path,) = packed.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def programs(wheel, tmp_path_factory) -> Path:
    """The programs of an environment that has the wheel and what it asks for, and nothing else."""
    place = tmp_path_factory.mktemp("empty")
    venv.create(place, with_pip=True)
    pip = (place / "bin" / "python", "-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "-c", ROOT / "constraints.txt", wheel.filename, cwd=place)
    run(*pip, "check", cwd=place)
    return place / "bin"


def test_the_wheel_holds_the_package_and_nothing_else(wheel, tracked):
    expected = {name.removeprefix("src/") for name in tracked if name.startswith("src/fedwidth/")}
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == expected
    for name in ("py.typed", "report/web/page.html", "report/web/page.js", "recipes/quickstart.toml"):
        assert f"fedwidth/{name}" in expected
    for folder, ending in (("recipes/fedbrb", ".toml"), ("deployment/folder/templates", ".txt")):
        assert any(name.startswith(f"fedwidth/{folder}/") and name.endswith(ending) for name in expected)


def test_the_source_distribution_is_the_repository(packed, tracked):
    (path,) = packed.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    made = {name for name in names if ".egg-info/" in name} | MADE_BY_SETUPTOOLS
    assert names - made == tracked - OF_THE_REPOSITORY


def test_what_is_said_about_the_package(wheel, packed):
    (place,) = {name.partition("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    about = message_from_bytes(wheel.read(f"{place}/METADATA"))
    assert (about["Name"], about["Version"]) == (PROJECT["name"], PROJECT["version"])
    assert about["Requires-Python"] == PROJECT["requires-python"]
    assert about["License-Expression"] == "Apache-2.0"
    assert f"{place}/licenses/LICENSE" in wheel.namelist()
    required = {str(Requirement(line)) for line in about.get_all("Requires-Dist") if "extra ==" not in line}
    assert required == {str(Requirement(line)) for line in PROJECT["dependencies"]}
    run(sys.executable, "-m", "twine", "check", "--strict", *packed.iterdir(), cwd=packed)


def test_the_source_distribution_can_be_tested(packed, tmp_path):
    (path,) = packed.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    assert " passed" in run(sys.executable, "-m", "pytest", "tests/devices/test_capacity.py", cwd=tree)


def test_the_command_line_in_an_empty_environment(programs, tracked, tmp_path):
    fedwidth = programs / "fedwidth"
    assert run(fedwidth, "--version", cwd=tmp_path).split() == ["fedwidth", PROJECT["version"]]
    listed = run(fedwidth, "methods", cwd=tmp_path, COLUMNS="200")
    pages = {Path(name).stem for name in tracked if name.startswith("docs/methods/")} - {"README", "overview"}
    assert len(pages) >= MIN_METHODS
    assert all(name in listed for name in pages)
    recipes = [name for name in tracked if name.startswith("src/fedwidth/recipes/")]
    assert len(recipes) >= MIN_RECIPES
    shown = run(fedwidth, "run", "--recipes", cwd=tmp_path, COLUMNS="200")
    assert all(name.removeprefix("src/fedwidth/recipes/").removesuffix(".toml") in shown for name in recipes)
    assert "--queue" in run(fedwidth, "reproduce", "--help", cwd=tmp_path, COLUMNS="200")


def test_the_quick_start_and_its_report_in_an_empty_environment(programs, tmp_path):
    fedwidth = programs / "fedwidth"
    small = [word for change in SMALL for word in ("--set", change)]
    run(fedwidth, "run", "--out", "runs/small", *small, cwd=tmp_path)
    summaries = sorted((tmp_path / "runs/small").rglob("summary.json"))
    assert summaries
    assert all(json.loads(path.read_text(encoding="utf-8"))["rounds"] == 2 for path in summaries)
    report = tmp_path / "runs/small/report.html"
    report.unlink()
    run(fedwidth, "report", "runs/small", cwd=tmp_path)
    text = report.read_text(encoding="utf-8")
    for part in ("page.js", "page.css"):
        assert (ROOT / "src/fedwidth/report/web" / part).read_text(encoding="utf-8").splitlines()[0] in text


def test_every_module_can_be_imported_without_extras(programs, wheel, tmp_path):
    """All but the rooms for Flower, which say that it is not installed, the keys and masks of secure sums, and the
    kernels for GPUs, which are asked for only where Triton is."""
    secure = (f"fedwidth/secure/{name}.py" for name in ("keys", "masks", "device", "aggregator"))
    extras = ("fedwidth/deployment/", "fedwidth/flower/", "fedwidth/models/norm_relu_kernels.py", *secure)
    names = [
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in wheel.namelist()
        if name.endswith(".py") and not name.startswith(("fedwidth/__main__", *extras))
    ]
    assert len(names) > 200
    run(programs / "python", "-c", "".join(f"import {name}\n" for name in names), cwd=tmp_path)
