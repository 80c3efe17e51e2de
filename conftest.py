"""Doctests of modules that need an extra are left out where that is not installed."""

from importlib.util import find_spec

collect_ignore_glob: list[str] = [] if find_spec("flwr") and find_spec("cryptography") else ["src/fedwidth/flower/*.py"]
