"""The records of secure sums, and the checks of what devices answer.

down   task     as without secure sums, with the run and the attempt; arrays also hold `secure/levels` (the shell of
                each unit, in a byte) and `secure/letters` (those of the clients that have shared)
       secure   run, round, attempt, client; arrays `open` (who is alive) and `share` (an invitation), or one of them
up     answer   to a task: token, round, client, attempt as sent; arrays hold `masked`, words of 32 bits, alone
       answer   to the other: why a part of it was refused; arrays hold `answer` and `bundle`

No weight, label, loss or number of samples is in any of them: they are words that are masked like all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedwidth.deployment.node.client_app import STYPE
from fedwidth.deployment.node.secure_sums import LETTERS, LEVELS
from fedwidth.deployment.node.wire import SECURE
from fedwidth.errors import SecureError, UpdateError
from fedwidth.printable import printable
from fedwidth.secure.messages import NONCE_BYTES, TAG_BYTES
from fedwidth.secure.sharing import SECRET_BYTES, SHARE_BYTES

MAX_WHY = 300
"""Characters of a reason that a device gives."""


def bytes_array(data: bytes) -> Array:
    """Bytes as Flower sends them."""
    return Array("uint8", (len(data),), STYPE, data)


def with_letters(
    record: RecordDict, *, run: bytes, attempt: int, letters: bytes, levels: NDArray[np.uint8] | None
) -> RecordDict:
    """The record of a task with what its device needs to mask what it trains."""
    facts, arrays = dict(record.config_records["task"]), dict(record.array_records["arrays"])
    facts |= {"run": run.hex(), "attempt": attempt}
    arrays[LETTERS] = bytes_array(letters)
    if levels is not None:
        arrays[LEVELS] = bytes_array(levels.tobytes())
    return RecordDict({"task": ConfigRecord(facts), "arrays": ArrayRecord(arrays)})


def secure_record(facts: Mapping[str, Any], parts: Mapping[str, bytes]) -> RecordDict:
    """The record that asks a client to open a round, to share for another, or for both."""
    arrays = {name: bytes_array(data) for name, data in parts.items()}
    return RecordDict({SECURE: ConfigRecord(dict(facts)), "arrays": ArrayRecord(arrays)})


def read_masked(content: RecordDict, expected: Mapping[str, Any], words: int) -> NDArray[np.uint32]:
    """The masked words of an answer to a task, which must say what is expected and be so many."""
    facts, arrays = _records(content)
    if set(facts) != set(expected) or set(arrays) != {"masked"}:
        raise UpdateError("it is not an answer of masked words")
    for name, value in expected.items():
        if facts[name] != value or isinstance(facts[name], bool):
            raise UpdateError(f"it is for another {name} than its task")
    return np.frombuffer(_data(arrays["masked"], "uint32", 4 * words), "<u4").astype(np.uint32)


def read_parts(content: RecordDict) -> tuple[dict[str, bytes], dict[str, str]]:
    """What a client answered of what it was asked to open and share, and why it refused the rest."""
    facts, arrays = _records(content)
    if not set(arrays) <= {"answer", "bundle"} or not set(facts) <= {"open_error", "share_error"}:
        raise UpdateError("it is not an answer about secure sums")
    found = {name: bytes(_data(array, "uint8", len(array.data))) for name, array in arrays.items()}
    return found, {name: printable(why, MAX_WHY) for name, why in facts.items()}


def max_share_bytes(clients: int, segments: int) -> int:
    """How large an answer to open and share may be, beside names and numbers."""
    letter = 4 + NONCE_BYTES + 5 + SHARE_BYTES * (1 + segments) + TAG_BYTES
    return clients * (SECRET_BYTES + letter + 4 + SHARE_BYTES * segments) + SECRET_BYTES + TAG_BYTES


def _records(content: RecordDict) -> tuple[ConfigRecord, ArrayRecord]:
    facts, arrays = content.get("answer"), content.get("arrays")
    if not isinstance(facts, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise UpdateError("it is not an answer")
    return facts, arrays


def _data(array: Array, dtype: str, length: int) -> bytes:
    items = length // (4 if dtype == "uint32" else 1)
    if array.dtype != dtype or array.stype != STYPE or tuple(array.shape) != (items,) or len(array.data) != length:
        raise UpdateError(f"it has not {items} words of {dtype}")
    return array.data


def need(parts: Mapping[str, bytes], errors: Mapping[str, str], name: str, what: str) -> bytes:
    """A part of an answer; `SecureError` where it was refused or is missing."""
    if what in errors or name not in parts:
        raise SecureError(errors.get(what, f"it has not answered what was asked: {name} is missing"))
    return parts[name]
