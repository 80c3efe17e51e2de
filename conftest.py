"""Doctests of modules that need an extra are left out where that is not installed."""

from importlib.util import find_spec

_FLOWER, _KEYS = find_spec("flwr"), find_spec("cryptography")
collect_ignore_glob: list[str] = [
    *([] if _FLOWER and _KEYS else ["src/fedwidth/deployment/*.py", "src/fedwidth/flower/*.py"]),
    *([] if find_spec("triton") else ["src/fedwidth/models/norm_relu_kernels.py"]),
    *([] if _KEYS else [f"src/fedwidth/secure/{name}.py" for name in ("keys", "masks", "device", "aggregator")]),
]
