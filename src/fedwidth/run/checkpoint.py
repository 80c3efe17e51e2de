"""Saving and resuming: one safetensors file that holds the whole server, written whole or not at all."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedwidth.errors import StateError
from fedwidth.files import write_whole as write_whole
from fedwidth.privacy.spent import Spent
from fedwidth.training.client_memory import FOLDER, ClientMemory, Files
from fedwidth.training.server.quarantine import Quarantine
from fedwidth.training.server.state import Server, by_name

FORMAT = 2
"""Version 0.1 wrote format 1, which is read too: it has no memory but what FedMinOccurances counted."""
NAME = "checkpoint.safetensors"
SEAL = "facts_checksum"


@dataclass(frozen=True)
class Copy:
    """A server as it was after a round, on the CPU and shared with nobody: it can be written while training goes on."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]
    clients: ClientMemory
    """What clients remember; nothing of it is ever changed in place."""


def copy_server(server: Server, *, identity: str, extra: dict[str, Any]) -> Copy:
    """What the checkpoint of a server holds; `identity` says which run it belongs to."""
    tensors = {f"state.{name}": _own(t) for name, t in server.state.items()}
    tensors |= {f"moment.{name}": _own(t) for name, t in server.moments.items()}
    tensors |= {f"memory.{name}": _own(t) for name, t in server.memory.items()}
    for capacity, own in server.norms.items():
        tensors |= {f"norm.{name}": _own(t) for name, t in by_name(capacity, own).items()}
    facts = {
        "format": FORMAT,
        "identity": identity,
        "round": server.round,
        "on_device": [name for name, t in server.memory.items() if t.device.type != "cpu"],
        **extra,
    }
    if server.quarantine:
        facts["conduct"] = server.quarantine.facts()
    if server.spent.rounds:
        facts["privacy"] = {**server.spent.facts(), "clip": server.clip}
    server.clients.pin()
    return Copy(tensors, facts, server.clients)


def write_copy(folder: Path, copy: Copy, *, also: Callable[[], Collection[str]] = tuple) -> None:
    """Make the copy the folder's checkpoint. Nothing here may use a GPU: another thread may be capturing a graph.

    Files of clients' memory that it does not name are deleted, unless `also` says that they are needed.
    """
    facts = {**copy.facts, "checksum": checksum(copy.tensors)}
    if copy.clients:
        facts["clients"] = copy.clients.write(folder / FOLDER)
    write_whole(folder / NAME, save(dict(copy.tensors), metadata={"fedwidth": json.dumps(sealed(facts))}))
    if copy.clients:
        copy.clients.keep_only(folder / FOLDER, before=facts["round"], also=also())


def _own(tensor: Tensor) -> Tensor:
    # Not in pinned memory: freeing that is a call to the GPU, from whichever thread does it.
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def load_server(
    folder: Path,
    *,
    identity: str | None,
    device: torch.device,
    files: Files | None = None,
    also: Callable[[], Collection[str]] = tuple,
    check: Callable[[Mapping[str, Tensor]], None] = lambda _: None,
) -> tuple[Server, dict[str, Any]]:
    """The server saved in a folder and the extra facts; refuses another run's, another version's or a damaged file.

    Without an `identity` any run's will do. With `files`, what clients remember stays there. `also` names files of
    theirs that are to stay although this checkpoint does not name them. `check` raises `StateError` where the global
    state is not the run's.
    """
    path = folder / NAME
    if not path.exists():
        raise StateError(f"there is no checkpoint to resume in {folder}")
    facts, tensors = _read(path)
    if identity is not None and facts.get("identity") != identity:
        raise StateError(f"{path} belongs to a run with other settings or another model; resume it with its own")
    try:
        check(_state(tensors))
    except StateError as error:
        raise StateError(f"{path} is damaged: {error}") from None

    def part(prefix: str) -> Iterator[tuple[str, Tensor]]:
        return ((n.removeprefix(prefix), t.to(device)) for n, t in tensors.items() if n.startswith(prefix))

    memory = {n: t if n in facts.get("on_device", ()) else t.cpu() for n, t in part("memory.")}
    if facts["format"] == 1 and facts["history_clients"] is not None:
        memory = {f"seen.{n}": t.cpu() for n, t in part("seen.")}
        memory["clients"] = torch.tensor(facts["history_clients"])
    norms: dict[float, dict[str, Tensor]] = {}
    for name, tensor in part("norm."):
        capacity, _, own = name.partition("/")
        norms.setdefault(float(capacity), {})[own] = tensor
    clients = ClientMemory.read(folder / FOLDER, facts.get("clients", {}), files=files, also=also())
    quarantine, privacy = Quarantine.of(facts.get("conduct", {})), facts.get("privacy", {})
    return Server(
        dict(part("state.")),
        facts["round"],
        memory,
        dict(part("moment.")),
        clients,
        quarantine,
        spent=Spent.of(privacy),
        norms=norms,
        clip=float(privacy.get("clip", 0.0)),
    ), facts


def read_state(path: Path) -> dict[str, Tensor]:
    """The global state that a checkpoint holds, by name; refuses another version's or a damaged one."""
    _, tensors = _read(path)
    return _state(tensors)


def rounds_done(folder: Path) -> int:
    """How many rounds the folder's checkpoint has done, 0 without one; refuses another version's or a damaged one."""
    if not (folder / NAME).exists():
        return 0
    facts, _ = _read(folder / NAME)
    return int(facts["round"])


def check_whole(path: Path, folder: Path) -> dict[str, Any]:
    """The facts of a checkpoint that is unharmed, with all files in the folder that it names."""
    facts, _ = _read(path)
    files = Files(folder / FOLDER)
    for name, known in facts.get("clients", {}).values():
        if files.checksum(name) != known:
            raise StateError(f"what a client remembers, in {files.path / name}, is damaged: its checksum differs")
    return facts


def client_files(path: Path) -> set[str]:
    """The files of clients' memory that a checkpoint names; none where it cannot be read."""
    try:
        with safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {}).get("fedwidth", "null"))
            return {name for name, _ in facts.get("clients", {}).values()}
    except (SafetensorError, ValueError, OSError, AttributeError):
        return set()


def _state(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("state."): tensor for name, tensor in tensors.items() if name.startswith("state.")}


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
    if not isinstance(facts, dict) or facts.get("format") not in (1, FORMAT):
        found = facts.get("format") if isinstance(facts, dict) else None
        raise StateError(f"{path} was written by another version of fedwidth (format {found}, this one reads {FORMAT})")
    if not unharmed(facts) or facts.get("checksum") != checksum(tensors) or "round" not in facts:
        raise StateError(f"{path} is damaged: its checksum does not fit its content")
    if type(facts["round"]) is not int or facts["round"] < 0:
        raise StateError(f"{path} is damaged: its round is {facts['round']!r}, which is no number of rounds")
    return facts, tensors


def sealed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts with a checksum: a flipped digit of the round would go on from another place without a word.

    >>> facts = sealed({"round": 10})
    >>> unharmed(facts), unharmed({**facts, "round": 90})
    (True, False)
    """
    return {**facts, SEAL: _facts_checksum(facts)}


def unharmed(facts: Mapping[str, Any]) -> bool:
    """Whether facts are what they were sealed as; those of older versions have no checksum."""
    return SEAL not in facts or facts[SEAL] == _facts_checksum(facts)


def _facts_checksum(facts: Mapping[str, Any]) -> int:
    """CRC-32 of the facts as JSON has them, whose keys are text."""
    counted = json.loads(json.dumps({name: value for name, value in facts.items() if name != SEAL}))
    return zlib.crc32(json.dumps(counted, sort_keys=True).encode())
