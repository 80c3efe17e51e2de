"""A reader of the pickles that CIFAR's python version consists of, which runs nothing.

Unpickling calls whatever the file names. Here every name but the four that a pickled byte array needs is refused, and
those four are stand-ins that only record what they were given, so not even numpy runs on the file's behalf.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from fedwidth.errors import DataError


class _Dtype:
    """Stands in for numpy.dtype; only unsigned bytes are admitted."""

    def __init__(self, code: object, *_: object) -> None:
        text = code.decode("latin1") if isinstance(code, bytes) else str(code)
        if text.lstrip("|<>=") != "u1":
            raise DataError(f"an array of type {text!r}; only bytes ('u1') are allowed")

    def __setstate__(self, state: object) -> None:
        """Byte order and the like mean nothing for bytes."""


class _Array:
    """Stands in for numpy.ndarray: keeps shape and bytes."""

    def __init__(self, *_: object) -> None:
        self.value: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        if not isinstance(dtype, _Dtype) or not isinstance(content, bytes):
            raise DataError("an array that is not plain bytes")
        flat = np.frombuffer(content, np.uint8)
        self.value = flat.reshape(shape, order="F" if fortran else "C")


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _encode(text: object, encoding: object = "latin1") -> bytes:
    if not isinstance(text, str) or encoding != "latin1":
        raise DataError("a text in an unexpected encoding")
    return text.encode("latin1")


ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,  # how newer Pythons write bytes in the old protocol
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Refuse every name that is not admitted."""
        if (module, name) not in ADMITTED:
            raise DataError(f"it asks for {module}.{name}, which is not allowed")
        return ADMITTED[module, name]


def read_pickle(path: Path) -> dict[bytes, Any]:
    """The dictionary in a pickle of dictionaries, lists, bytes, text, numbers and byte arrays; all else is refused."""
    try:
        content = _Reader(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{path} refused: {error}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    except Exception as error:  # a damaged pickle can raise anything
        size = path.stat().st_size
        raise DataError(f"{path} ({size} bytes) is truncated or damaged: {error}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__}, not a dictionary")
    return {
        key.encode() if isinstance(key, str) else key: value.value if isinstance(value, _Array) else value
        for key, value in content.items()
    }
