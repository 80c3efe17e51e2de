from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwidth.data.sets.unpickle import read_pickle
from fedwidth.errors import DataError


class Call:
    """Unpickling this calls a function."""

    def __init__(self, function: Any, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_plain_content_and_byte_arrays(tmp_path: Path, protocol: int) -> None:
    table = np.arange(12, dtype=np.uint8).reshape(3, 4)
    record = {b"data": table, b"turned": table.T, b"labels": [1, 2], b"name": "x", b"raw": b"\xff", "text": "ü"}
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps(record, protocol=protocol))
    found = read_pickle(path)
    assert np.array_equal(found[b"data"], table)
    assert np.array_equal(found[b"turned"], table.T)
    assert (found[b"labels"], found[b"raw"], found[b"text"]) == ([1, 2], b"\xff", "ü")


def test_as_python_2_wrote_it(tmp_path: Path) -> None:
    """Protocol 2 with byte strings, numpy under its old name: by hand, as no Python 3 writes it."""
    path = tmp_path / "batch"
    path.write_bytes(
        b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x01K\x02\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x02\x07\x08tbU\x06labels]K\x05au."
    )
    found = read_pickle(path)
    assert found[b"data"].tolist() == [[7, 8]]
    assert found[b"labels"] == [5]


def test_nothing_is_ever_called(tmp_path: Path) -> None:
    target = tmp_path / "made"
    for number, value in enumerate(
        [
            Call(os.mkdir, str(target)),
            Call(os.system, f"touch {target}"),
            Call(eval, f"open({str(target)!r}, 'w')"),
            Call(getattr, os, "mkdir"),
            Call(np.save, str(target), np.zeros(1)),
            OrderedDict(a=1),
            np.float64(1.0),
        ]
    ):
        path = tmp_path / f"batch{number}"
        try:
            path.write_bytes(pickle.dumps({b"data": value}, protocol=2))
        except (TypeError, pickle.PicklingError):  # a module cannot be pickled at all
            continue
        with pytest.raises(DataError, match=r"refused: it asks for .* not allowed"):
            read_pickle(path)
        assert not target.exists()


@pytest.mark.parametrize(
    "array", [np.zeros(3), np.array([{}], dtype=object), np.zeros(2, np.int64), np.array(["a"])], ids=str
)
def test_only_byte_arrays(tmp_path: Path, array: np.ndarray) -> None:
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({b"data": array}, protocol=2))
    with pytest.raises(DataError, match="only bytes"):
        read_pickle(path)


def test_truncated_damaged_or_no_dictionary(tmp_path: Path) -> None:
    whole = pickle.dumps({b"data": np.arange(100, dtype=np.uint8)}, protocol=2)
    path = tmp_path / "batch"
    for end in (0, 1, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(DataError, match=rf"batch \({end} bytes\) is truncated or damaged|refused"):
            read_pickle(path)
    path.write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(DataError, match="holds a list"):
        read_pickle(path)
    with pytest.raises(DataError, match="cannot read"):
        read_pickle(tmp_path / "absent")
