"""What clients remember between rounds, kept for them by the simulation: in memory, or in files.

A method's rule may leave something with each client (SCAFFOLD its control variate). It has the shapes of the whole
model, whatever the client trains: a round changes the part that the client held. Only clients that were drawn have any.
Files are written once and never changed, so that a run that was killed finds those of its last checkpoint.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
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

    def write(self, name: str, tensors: Tensors) -> None:
        """Write a file whole or not at all."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_whole(self.path / name, save({n: t.detach().cpu().contiguous() for n, t in tensors.items()}))

    def read(self, name: str) -> dict[str, Tensor]:
        """The tensors of a file."""
        return load_file(self.path / name)

    def keep_only(self, names: set[str], *, before: float = math.inf) -> None:
        """Delete all files of rounds before this one but these."""
        for path in self.path.glob("*.safetensors") if self.path.is_dir() else ():
            if path.name not in names and int(path.stem.partition("-")[2]) < before:
                path.unlink(missing_ok=True)


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
            held[task.client] = (file, changed if self.files is None else None)
        return replace(self, held=held)

    def write(self, folder: Path) -> dict[str, str]:
        """Write what is not yet in the folder; the name of each client's file."""
        files = self.files if self.files is not None and self.files.path == folder else Files(folder)
        for client, (name, _) in self.held.items():
            if not (files.path / name).exists():
                files.write(name, self[client])
        return {str(client): name for client, (name, _) in self.held.items()}

    @classmethod
    def read(cls, folder: Path, names: Mapping[str, str], *, files: Files | None) -> ClientMemory:
        """The memory of a checkpoint, of which these are the files."""
        source = Files(folder)
        found = {int(client): (name, None if files else source.read(name)) for client, name in names.items()}
        return cls(found, files)
