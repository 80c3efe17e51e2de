"""What the package imports is what pyproject.toml asks for, with extras where extras are used."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "fedwidth"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DISTRIBUTIONS = {
    "sklearn": "scikit-learn",
    "dp_accounting": "dp-accounting",
    "prometheus_client": "prometheus-client",
    "opentelemetry": "opentelemetry-sdk",
}
"""Modules that are not called as the distribution they come in."""
WITH_FLOWER = {"fastapi", "grpc", "httpx", "uvicorn"}
"""What Flower brings, and only the rooms for Flower use."""
ON_DEVICES = {"device.py": {"conditions", "connection", "trainer_process"}, "supernode.py": {"forks"}}
"""For each file of a device's folder those that it imports from beside it there."""
POSIX = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
"""Modules of the standard library that Windows does not have."""
CORE = ("core", "plan", "methods", "devices")
OF_THE_CORE = {"torch", "numpy"}


def imported() -> dict[Path, set[str]]:
    """The top-level modules that each file imports, wherever in it."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        names = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module)
        found[path.relative_to(PACKAGE)] = {name.partition(".")[0] for name in names} - {"fedwidth"}
    return found


def of_others() -> dict[Path, set[str]]:
    """Those of them that are not of the standard library."""
    return {path: modules - set(sys.stdlib_module_names) for path, modules in imported().items()}


def named(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~\[; ]", requirement, maxsplit=1)[0] for requirement in requirements}


def test_what_is_imported_is_asked_for():
    required = named(PROJECT["dependencies"]) | {"triton"}  # which comes with PyTorch for GPUs
    for extra in (
        "hdf5",
        "tensorboard",
        "mlflow",
        "wandb",
        "ray",
        "flower",
        "metrics",
        "privacy",
        "onnx",
        "executorch",
    ):
        required |= named(PROJECT["optional-dependencies"][extra])
    for path, modules in of_others().items():
        if path.parts[0] in ("deployment", "flower"):
            modules = modules - WITH_FLOWER - ON_DEVICES.get(path.name, set())
        missing = {DISTRIBUTIONS.get(module, module) for module in modules} - required
        assert not missing, f"{path} imports {missing}, which pyproject.toml does not ask for"


def test_what_is_asked_for_is_imported():
    modules = {DISTRIBUTIONS.get(module, module) for found in of_others().values() for module in found}
    assert named(PROJECT["dependencies"]) <= modules


def test_the_core_imports_torch_and_numpy_alone():
    for path, modules in of_others().items():
        if path.parts[0] in CORE:
            assert modules <= OF_THE_CORE, f"{path} imports {modules - OF_THE_CORE}"


def test_only_deployments_import_what_windows_does_not_have():
    for path, modules in imported().items():
        if path.parts[0] != "deployment":
            assert not modules & POSIX, f"{path} imports {modules & POSIX}"
