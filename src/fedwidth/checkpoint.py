"""Saving and resuming: one safetensors file that holds the whole server, written whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedwidth.errors import StateError
from fedwidth.methods import History
from fedwidth.server import Server

FORMAT = 1
NAME = "checkpoint.safetensors"


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file so that readers see the old or the new content, also after a crash or on a full disk."""
    data = content.encode() if isinstance(content, str) else content
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        kept = "; the previous one is unharmed" if path.exists() else ""
        raise StateError(f"cannot write {path}: {error.strerror or error}{kept}") from error


@dataclass(frozen=True)
class Copy:
    """A server as it was after a round, on the CPU and shared with nobody: it can be written while training goes on."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


def copy_server(server: Server, *, identity: str, extra: dict[str, Any]) -> Copy:
    """What the checkpoint of a server holds; `identity` says which run it belongs to."""
    tensors = {f"state.{name}": _own(t) for name, t in server.state.items()}
    tensors |= {f"moment.{name}": _own(t) for name, t in server.moments.items()}
    if server.history is not None:
        tensors |= {f"seen.{name}": _own(t) for name, t in server.history.seen.items()}
    facts = {
        "format": FORMAT,
        "identity": identity,
        "round": server.round,
        "history_clients": server.history.clients if server.history else None,
        **extra,
    }
    return Copy(tensors, facts)


def write_copy(folder: Path, copy: Copy) -> None:
    """Make the copy the folder's checkpoint. Nothing here may use a GPU: another thread may be capturing a graph."""
    facts = {**copy.facts, "checksum": checksum(copy.tensors)}
    facts["facts_checksum"] = _facts_checksum(facts)
    write_whole(folder / NAME, save(dict(copy.tensors), metadata={"fedwidth": json.dumps(facts)}))


def _own(tensor: Tensor) -> Tensor:
    # Not in pinned memory: freeing that is a call to the GPU, from whichever thread does it.
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def load_server(folder: Path, *, identity: str, device: torch.device) -> tuple[Server, dict[str, Any]]:
    """The server saved in a folder and the extra facts; refuses another run's, another version's or a damaged file."""
    path = folder / NAME
    if not path.exists():
        raise StateError(f"there is no checkpoint to resume in {folder}")
    facts, tensors = _read(path)
    if facts.get("identity") != identity:
        raise StateError(f"{path} belongs to a run with other settings or another model; resume it with its own")

    def part(prefix: str) -> Iterator[tuple[str, Tensor]]:
        return ((n.removeprefix(prefix), t.to(device)) for n, t in tensors.items() if n.startswith(prefix))

    clients = facts["history_clients"]
    history = History({n: t.cpu() for n, t in part("seen.")}, clients) if clients is not None else None
    return Server(dict(part("state.")), facts["round"], history, dict(part("moment."))), facts


def rounds_done(folder: Path) -> int:
    """How many rounds the folder's checkpoint has done, 0 without one; refuses another version's or a damaged one."""
    if not (folder / NAME).exists():
        return 0
    facts, _ = _read(folder / NAME)
    return int(facts["round"])


def checksum(tensors: Mapping[str, Tensor]) -> int:
    """CRC-32 of names and contents: safetensors notices a short file, but not a flipped bit."""
    total = 0
    for name in sorted(tensors):
        content = tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy()
        total = zlib.crc32(content, zlib.crc32(name.encode(), total))  # type: ignore[arg-type]
    return total


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Facts and tensors of a checkpoint of this version, unharmed."""
    try:
        with safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {}).get("fedwidth", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, OSError) as error:
        raise StateError(f"{path} is damaged: {error}") from error
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        found = facts.get("format") if isinstance(facts, dict) else None
        raise StateError(f"{path} was written by another version of fedwidth (format {found}, this one reads {FORMAT})")
    # Checkpoints of the first days have no checksum of their facts.
    whole = facts.get("facts_checksum", _facts_checksum(facts)) == _facts_checksum(facts)
    if not whole or facts.get("checksum") != checksum(tensors) or not {"round", "history_clients"} <= facts.keys():
        raise StateError(f"{path} is damaged: its checksum does not fit its content")
    return facts, tensors


def _facts_checksum(facts: Mapping[str, Any]) -> int:
    """CRC-32 of the facts: a flipped digit of the round would go on from another place without a word."""
    counted = {name: value for name, value in facts.items() if name != "facts_checksum"}
    return zlib.crc32(json.dumps(counted, sort_keys=True).encode())
