"""What clients remember between rounds, kept for them by the simulation: in memory, or in files.

A method's rule may leave something with each client (SCAFFOLD its control variate). It has the shapes of the whole
model, whatever the client trains: a round changes the part that the client held. Where a client's model stays with it
(DS-FL), it is kept as it is, one for every size it has had. Only clients that were drawn have any.
Files are written once and never changed, so that a run that was killed finds those of its last checkpoint.
"""

from __future__ import annotations

import math
import re
import shutil
import tempfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from weakref import finalize

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fedwidth.core.index import Index
from fedwidth.core.submodel import put
from fedwidth.errors import StateError
from fedwidth.files import write_whole
from fedwidth.methods import Task, named, under

FOLDER = "clients"
"""The name of the folder of these files in the folder of a run."""

_NAME = re.compile(r"\d+-\d+\.safetensors", re.ASCII)

Tensors = Mapping[str, Tensor]


class Files:
    """A folder of files, one for each client and round; a temporary one goes when nobody holds it any more."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or Path(tempfile.mkdtemp(prefix="fedwidth-clients-"))
        if path is None:
            finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        self._pinned: set[str] = set()
        """The names of files that belong to a checkpoint, or to one that is being written."""
        self._replaced: list[str] = []
        """The names of files that the last round has replaced: it may still fail, and then they are needed."""

    def pin(self, names: Iterable[str]) -> None:
        """Keep these files until a later checkpoint has been written."""
        self._pinned.update(names)

    def begin_round(self) -> None:
        """Delete what the round before has replaced, unless a checkpoint needs it."""
        for name in self._replaced:
            if name not in self._pinned:
                (self.path / name).unlink(missing_ok=True)
        self._replaced.clear()

    def mark_replaced(self, name: str) -> None:
        """Note that a file is out of date once this round has ended."""
        self._replaced.append(name)

    def write(self, name: str, tensors: Tensors) -> None:
        """Write a file whole or not at all."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_whole(self.path / name, save({n: t.detach().cpu().contiguous() for n, t in tensors.items()}))

    def read(self, name: str) -> dict[str, Tensor]:
        """The tensors of a file."""
        try:
            return load_file(self.path / name)
        except (SafetensorError, OSError) as error:
            raise StateError(f"what a client remembers, in {self.path / name}, cannot be read: {error}") from error

    def checksum(self, name: str) -> int:
        """CRC-32 of a file: safetensors notices a short one, but not a flipped bit."""
        try:
            return zlib.crc32((self.path / name).read_bytes())
        except OSError as error:
            raise StateError(f"what a client remembers, in {self.path / name}, cannot be read: {error}") from error

    def keep_only(self, names: Collection[str], *, before: float = math.inf) -> None:
        """Delete all files of rounds before this one but these, and pin none of them any longer."""
        self._pinned = {name for name in self._pinned if name in names or _round_of(name) >= before}
        for path in self.path.iterdir() if self.path.is_dir() else ():
            if path.name not in names and _NAME.fullmatch(path.name) and _round_of(path.name) < before:
                path.unlink(missing_ok=True)


def _round_of(name: str) -> int:
    """The round in which a file was written."""
    return int(name.removesuffix(".safetensors").partition("-")[2])


@dataclass(frozen=True)
class ClientMemory(Mapping[int, Tensors]):
    """The memory of every client that has one, by the client's number."""

    held: Mapping[int, tuple[str, Tensors | None]] = field(default_factory=dict)
    """By client: the name of its file, and its tensors, or None where they are in the file only."""
    files: Files | None = None
    """The files that hold the tensors, where they are not kept in memory."""

    def __getitem__(self, client: int) -> Tensors:
        name, tensors = self.held[client]
        if tensors is not None:
            return tensors
        assert self.files is not None
        return self.files.read(name)

    def __iter__(self) -> Iterator[int]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)

    def after(
        self,
        tasks: Sequence[Task],
        kept: Mapping[int, Mapping[str, Tensors]],
        state: Tensors,
        round: int,
    ) -> ClientMemory:
        """The memory after a round in which clients kept these parts; where a client had none, the rest is 0."""
        if not kept:
            return self
        held = dict(self.held)
        if self.files is not None:
            self.files.begin_round()
        for task in tasks:
            if task.client not in kept:
                continue
            before = self.get(task.client, {})
            renewed = tuple(f"{name}." for name in kept[task.client])
            changed = {name: tensor for name, tensor in before.items() if not name.startswith(renewed)}
            for name, parts in kept[task.client].items():
                if not isinstance(task.part, Index):
                    changed |= named(name, parts)
                    continue
                full = under(before, name)
                for tensor, part in parts.items():
                    whole = (
                        full[tensor].clone() if tensor in full else torch.zeros(state[tensor].shape, dtype=part.dtype)
                    )
                    put(whole, part.to(whole.device), task.index, tensor)
                    full[tensor] = whole
                changed |= named(name, full)
            file = f"{task.client}-{round}.safetensors"
            if self.files is not None:
                self.files.write(file, changed)
                if task.client in held:
                    self.files.mark_replaced(held[task.client][0])
            held[task.client] = (file, changed if self.files is None else None)
        return replace(self, held=held)

    def pin(self) -> None:
        """Keep the files as they are now: a checkpoint of them is going to be written."""
        if self.files is not None:
            self.files.pin(name for name, _ in self.held.values())

    def write(self, folder: Path) -> dict[str, list[str | int]]:
        """Write what is not yet in the folder; the name of each client's file, and its checksum."""
        files = self._files(folder)
        for client, (name, _) in self.held.items():
            if not (files.path / name).exists():
                files.write(name, self[client])
        return {str(client): [name, files.checksum(name)] for client, (name, _) in self.held.items()}

    def keep_only(self, folder: Path, *, before: float, also: Collection[str] = ()) -> None:
        """Of the files of rounds before this one, keep only those that are held; a checkpoint of them was written.

        Files that earlier checkpoints need are kept `also`.
        """
        names = {name for name, _ in self.held.values()}
        self._files(folder).keep_only(names | set(also), before=before)

    def _files(self, folder: Path) -> Files:
        return self.files if self.files is not None and self.files.path == folder else Files(folder)

    @classmethod
    def read(
        cls,
        folder: Path,
        known: Mapping[str, Sequence[str | int]],
        *,
        files: Files | None,
        also: Collection[str] = (),
    ) -> ClientMemory:
        """The memory of a checkpoint, of which these are the files and their checksums; others are deleted.

        Those that earlier checkpoints need are kept `also`.
        """
        source = files or Files(folder)
        names = {int(client): str(name) for client, (name, _) in known.items()}
        source.keep_only({*names.values(), *also})  # a run that was killed may have left later ones
        source.pin(also)
        for name, checksum in known.values():
            if source.checksum(str(name)) != checksum:
                raise StateError(f"what a client remembers, in {folder / str(name)}, is damaged: its checksum differs")
        found = cls({client: (name, None if files else source.read(name)) for client, name in names.items()}, files)
        found.pin()
        return found


def forget_clients(folder: Path) -> None:
    """Delete what clients of another run remembered in a run's folder."""
    Files(folder / FOLDER).keep_only(())
    with suppress(OSError):
        (folder / FOLDER).rmdir()
