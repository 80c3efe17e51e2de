"""The `make` commands of the documentation, run with this environment in place of one of their own.

`make run` trains with one round and a small model, in a folder apart; targets that run tests run a few of them.
Those that take longer are slow tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from doc_pages import ROOT
from doc_runs import commands_in, made_small

BIN = Path(sys.executable).parent
FEW = {
    "test": "tests/devices/test_capacity.py",
    "check": "tests/devices/test_capacity.py",
    "test-slow": "tests/contracts/test_every_engine.py -k 'every_method_on_every_model and mlp and fedrolex'",
}
"""What a target that runs tests runs of them, so that it does not run itself."""
NEEDS = {"run": (), "results": ("reproduction", "results")}
"""Targets that write into the folder they are run in, and what of the repository they need there."""

QUICK, SLOW = (
    sorted({command.words for _, _, command in commands_in(suite, "make")}) for suite in ("test", "test-slow")
)
EXPECTED = {
    "help": "Show this list",
    "run": "report: ",
    "test": " passed",
    "check": " passed",
    "test-slow": " passed",
    "bench": "extract",
    "results": "docs/results.md",
}

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def run_make(words, tmp_path):
    """Run it, and return what it printed."""
    (target,) = words[1:]
    stamp = tmp_path / "installed"
    stamp.touch()
    folder, programs = ROOT, BIN
    if target in NEEDS:
        folder = tmp_path
        (folder / "docs").mkdir()
        for name in ("Makefile", "pyproject.toml", "constraints.txt", *NEEDS[target]):
            (folder / name).symlink_to(ROOT / name)
    if target == "run":
        programs = tmp_path / "bin"
        programs.mkdir()
        less = " ".join(made_small(["run"])[1:])
        (programs / "fedwidth").write_text(f'#!/bin/sh\nexec {sys.executable} -m fedwidth "$@" {less}\n')
        (programs / "fedwidth").chmod(0o755)
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "MAKE", "MFLAGS"))},
        "PYTEST_ADDOPTS": f"-p no:cacheprovider {FEW.get(target, '')}",
        "PYTHONPATH": str(ROOT / "src"),
    }
    given = [*words, f"BIN={programs}", f"STAMP={stamp}"]
    done = subprocess.run(given, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("words", QUICK, ids=" ".join)
def test_quick_targets(words, tmp_path):
    assert EXPECTED[words[1]] in run_make(words, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("words", SLOW, ids=" ".join)
def test_slow_targets(words, tmp_path):
    assert EXPECTED[words[1]] in run_make(words, tmp_path)
