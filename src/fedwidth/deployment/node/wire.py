"""Packs tensors and facts into one block of bytes, and sends such blocks over a socket. Standard library only.

The block is a safetensors file: 8 bytes of header length, a JSON header, the tensors' bytes. Facts are JSON in its
metadata. On the socket 8 bytes of length (little-endian) come first. This file is copied into app folders.
"""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Mapping
from typing import Any

INTRODUCE, SECURE, TRAIN = "introduce", "secure", "train"
"""What a block asks the trainer for, under `stage` in its facts; a task where there is none."""

Raw = tuple[str, tuple[int, ...], bytes]
"""A tensor as its dtype, its shape and its bytes (in row order, little-endian)."""

CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "uint32": "U32",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""The dtypes that can be sent, with their names in safetensors files."""
NAMES = {code: name for name, code in CODES.items()}
MAX_BYTES = 1 << 36
"""Size beyond which a block is refused: nothing that a device trains has 64 GiB."""


def item_size(dtype: str) -> int:
    """How many bytes one element of this dtype has.

    >>> item_size("bfloat16"), item_size("bool")
    (2, 1)
    """
    digits = "".join(c for c in dtype if c.isdigit())
    return int(digits) // 8 if digits else 1


def pack(facts: Mapping[str, Any], tensors: Mapping[str, Raw]) -> bytes:
    """Pack facts and tensors into a block.

    >>> unpack(pack({"round": 1}, {"w": ("float32", (1,), bytes(4))}))
    ({'round': 1}, {'w': ('float32', (1,), b'\\x00\\x00\\x00\\x00')})
    """
    header: dict[str, Any] = {"__metadata__": {"facts": json.dumps(facts)}}
    start = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [start, start + len(data)]}
        start += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *(data for _, _, data in tensors.values())])


def unpack(block: bytes) -> tuple[dict[str, Any], dict[str, Raw]]:
    """Unpack the facts and tensors of a block; `ValueError` where it is damaged."""
    length = int.from_bytes(block[:8], "little")
    if len(block) < 8 + length:
        raise ValueError("the block ends within its header")
    header = json.loads(block[8 : 8 + length])
    facts = json.loads(header.pop("__metadata__")["facts"])
    tensors: dict[str, Raw] = {}
    for name, entry in header.items():
        dtype, shape = NAMES[entry["dtype"]], tuple(entry["shape"])
        start, end = entry["data_offsets"]
        data = block[8 + length + start : 8 + length + end]
        if len(data) != end - start or len(data) != math.prod(shape) * item_size(dtype):
            raise ValueError(f"the bytes of '{name}' do not fit its shape")
        tensors[name] = (dtype, shape, data)
    return facts, tensors


def send(connection: socket.socket, block: bytes) -> None:
    """Write one block."""
    connection.sendall(len(block).to_bytes(8, "little"))
    connection.sendall(block)


def receive(connection: socket.socket) -> bytes:
    """Read one block; `EOFError` where the other side has hung up."""
    length = int.from_bytes(_read(connection, 8), "little")
    if length > MAX_BYTES:
        raise ValueError(f"a block of {length} bytes is refused")
    return _read(connection, length)


def _read(connection: socket.socket, length: int) -> bytes:
    received = bytearray()
    while len(received) < length:
        more = connection.recv(min(length - len(received), 1 << 20))
        if not more:
            raise EOFError("the connection was closed")
        received += more
    return bytes(received)
