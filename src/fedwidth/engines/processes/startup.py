"""Whether worker processes can be given what they train with: the model pickled, tensors through shared memory.

A new process imports the script it was started from, which runs all of it again unless it is guarded by
`if __name__ == "__main__":`. Workers need the script only if something they are sent is defined in it.
"""

from __future__ import annotations

import ast
import io
import pickle
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedwidth.errors import OptionError
from fedwidth.methods import Reference
from fedwidth.training.client import Trainer

SHARED_MEMORY = Path("/dev/shm")
"""Where Linux keeps it; other systems set it no limit of its own."""


def sent_once(trainer: Trainer) -> tuple[Any, ...]:
    """What every worker gets when it starts; of the method, the way to find it."""
    method = Reference.of(trainer.method)
    objective = trainer.objective
    return trainer.model, trainer.plan, trainer.data, trainer.partition, trainer.settings, objective, method


def cannot_send(model: nn.Module) -> str | None:
    """Why the model cannot go to another process (it holds a lambda, an open file, …); None where it can."""
    try:
        pickle.dumps(model)
    except Exception as error:  # a model may hold anything, and pickle fails in as many ways
        return str(error) or type(error).__name__
    return None


def cannot_import(trainer: Trainer) -> str | None:
    """Why workers cannot get at what the script itself defines (a model, data), or None where they can or need not."""
    try:
        Reference.of(trainer.method)
    except OptionError as error:
        return str(error).partition("; ")[0]
    if not needs_script(trainer):
        return None
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is None or not Path(path).is_file():
        return "model or data are defined in an interactive session, which worker processes cannot import"
    if _is_guarded(Path(path)):
        return None
    return (
        f"model or data are defined in {Path(path).name}, which every worker process would run again: put what it does"
        " under `if __name__ == '__main__':`, or the definitions into a module"
    )


def needs_script(trainer: Trainer) -> bool:
    """Whether something that workers are sent is defined in the script that runs."""
    content = io.BytesIO()
    _Counter(content).dump(sent_once(trainer))
    return b"__main__" in content.getvalue()


@contextmanager
def script_unseen(unseen: bool) -> Iterator[None]:
    """Within it, a process that is started does not import the script."""
    main = sys.modules["__main__"]
    held: dict[str, Any] = {n: main.__dict__[n] for n in ("__file__", "__spec__") if n in main.__dict__}
    if unseen:
        main.__dict__.pop("__file__", None)
        main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(held)


def _is_guarded(script: Path) -> bool:
    """Whether a script asks for its own name anywhere on its top level."""
    tests = [node.test for node in ast.parse(script.read_bytes()).body if isinstance(node, ast.If)]
    return any(isinstance(part, ast.Name) and part.id == "__name__" for test in tests for part in ast.walk(test))


def cannot_share(trainer: Trainer) -> str | None:
    """Why what workers start with does not fit into shared memory, or None; asked for too much, PyTorch crashes."""
    if not SHARED_MEMORY.is_dir():
        return None
    try:
        needed = count_shared(sent_once(trainer))
    except Exception as error:  # data of the user's own may hold anything, as a model may
        return f"the data cannot be sent to worker processes ({error or type(error).__name__})"
    free = shutil.disk_usage(SHARED_MEMORY).free
    if needed <= free:
        return None
    return f"model and data take {_megabytes(needed)} of shared memory, and {SHARED_MEMORY} has {_megabytes(free)} free"


def count_shared(content: Any) -> int:
    """Bytes of shared memory that sending this takes: tensors there already, and views of one memory, count once.

    >>> import torch
    >>> rows = torch.zeros(10, 3)
    >>> count_shared([rows, {"part": rows[2:]}, torch.zeros(5, dtype=torch.uint8)])
    125
    """
    counter = _Counter(_Nowhere())
    counter.dump(content)
    return sum(counter.sizes.values())


class _Nowhere(io.RawIOBase):
    """Takes what is written and keeps nothing of it."""

    def write(self, content: Any) -> int:
        """Forget it."""
        return len(content)


class _Counter(pickle.Pickler):
    """Finds the tensors in what is pickled, without writing them down."""

    def __init__(self, out: io.RawIOBase | io.BytesIO) -> None:
        super().__init__(out)
        self.sizes: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        """Not None for what is left out: the tensors."""
        if not isinstance(obj, Tensor):
            return None
        memory = obj.untyped_storage()
        if memory.device.type == "cpu" and not memory.is_shared():
            self.sizes[memory.data_ptr()] = memory.nbytes()
        return 0


def _megabytes(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
