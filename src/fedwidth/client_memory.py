"""What clients remember between rounds, kept for them by the simulation: in memory, or in files.

A method's rule may leave something with each client (SCAFFOLD its control variate). It has the shapes of the whole
model, whatever the client trains: a round changes the part that the client held. Only clients that were drawn have any.
Files are written once and never changed, so that a run that was killed finds those of its last checkpoint.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from weakref import finalize

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from fedwidth.files import write_whole
from fedwidth.methods import Task, named, under
from fedwidth.submodel import put

FOLDER = "clients"
"""Where a run folder has them."""

Tensors = Mapping[str, Tensor]


class Files:
    """A folder of files, one for each client and round; a temporary one goes when nobody holds it any more."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or Path(tempfile.mkdtemp(prefix="fedwidth-clients-"))
        if path is None:
            finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        self._pinned: set[str] = set()
        """Files of a checkpoint, or of one that is being written."""

    def pin(self, names: Iterable[str]) -> None:
        """Keep these files until others are pinned by `keep_only`."""
        self._pinned.update(names)

    def drop(self, name: str) -> None:
        """Delete a file that is out of date, unless a checkpoint needs it."""
        if name not in self._pinned:
            (self.path / name).unlink(missing_ok=True)

    def write(self, name: str, tensors: Tensors) -> None:
        """Write a file whole or not at all."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_whole(self.path / name, save({n: t.detach().cpu().contiguous() for n, t in tensors.items()}))

    def read(self, name: str) -> dict[str, Tensor]:
        """The tensors of a file."""
        return load_file(self.path / name)

    def keep_only(self, names: set[str], *, before: float = math.inf) -> None:
        """Delete all files of rounds before this one but these, and pin none of them any longer."""
        self._pinned = {name for name in self._pinned if name in names or _round_of(name) >= before}
        for path in self.path.glob("*.safetensors") if self.path.is_dir() else ():
            if path.name not in names and _round_of(path.name) < before:
                path.unlink(missing_ok=True)


def _round_of(name: str) -> int:
    """The round in which a file was written."""
    return int(name.removesuffix(".safetensors").partition("-")[2])


@dataclass(frozen=True)
class ClientMemory(Mapping[int, Tensors]):
    """The memory of every client that has one, by the client's number."""

    held: Mapping[int, tuple[str, Tensors | None]] = field(default_factory=dict)
    """The name of the client's file, and its tensors unless they are there alone."""
    files: Files | None = None
    """Where they are kept instead of in memory."""

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
        for task in tasks:
            if task.client not in kept:
                continue
            before = self.get(task.client, {})
            changed: dict[str, Tensor] = {}
            for name, parts in kept[task.client].items():
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
                    self.files.drop(held[task.client][0])
            held[task.client] = (file, changed if self.files is None else None)
        return replace(self, held=held)

    def pin(self) -> None:
        """Keep the files as they are now: a checkpoint of them is going to be written."""
        if self.files is not None:
            self.files.pin(name for name, _ in self.held.values())

    def write(self, folder: Path) -> dict[str, str]:
        """Write what is not yet in the folder; the name of each client's file."""
        files = self._files(folder)
        for client, (name, _) in self.held.items():
            if not (files.path / name).exists():
                files.write(name, self[client])
        return {str(client): name for client, (name, _) in self.held.items()}

    def keep_only(self, folder: Path, *, before: float) -> None:
        """Of the files of rounds before this one, keep only those that are held; a checkpoint of them was written."""
        self._files(folder).keep_only({name for name, _ in self.held.values()}, before=before)

    def _files(self, folder: Path) -> Files:
        return self.files if self.files is not None and self.files.path == folder else Files(folder)

    @classmethod
    def read(cls, folder: Path, names: Mapping[str, str], *, files: Files | None) -> ClientMemory:
        """The memory of a checkpoint, of which these are the files."""
        source = Files(folder)
        found = {int(client): (name, None if files else source.read(name)) for client, name in names.items()}
        return cls(found, files)
