"""What worker processes are given when they start, and why that may not work.

The model is pickled, and tensors go through shared memory. A new process imports the script it was started from, which
runs all of it again unless it is guarded by `if __name__ == "__main__":`. Workers need the script only if something
they are sent is defined in it.
"""

from __future__ import annotations

import ast
import io
import multiprocessing
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from fedwidth.core.narrow import computed_in, copy_model
from fedwidth.engines.processes.shared_memory import SHARED_MEMORY, TensorFinder, count_shared, free_shared_memory
from fedwidth.errors import OptionError
from fedwidth.methods import Reference
from fedwidth.training.client import Trainer


def worker_context(*preload: str) -> BaseContext:
    """How worker processes start: where that is possible from a clean server process that has these modules imported.

    So what takes long to import is imported once, not in every worker.
    """
    known = multiprocessing.get_all_start_methods()
    if "forkserver" not in known:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    return context


def startup_arguments(trainer: Trainer) -> tuple[Any, ...]:
    """What every worker gets when it starts; of the method, the way to find it."""
    method = Reference.of(trainer.method)
    objective = trainer.objective
    # Where the server alone looks at public data, workers need none.
    answers = trainer.method.local is not None and trainer.method.local.answers is not None
    public = (trainer.public,) if answers else ()
    model = trainer.model
    if any(True for _ in computed_in(model)):  # shared memory takes no tensor that autograd computed
        model = copy_model(model)
    return model, trainer.plan, trainer.data, trainer.partition, trainer.settings, objective, method, *public


def networks_of(trainer: Trainer) -> list[Any]:
    """The model, and the architectures that travel with the parts which clients hold of them."""
    return [trainer.model, *dict.fromkeys(trainer.method.architectures.values())]


def why_not_send(thing: Any) -> str | None:
    """The reason why a model (or an objective) cannot go to another process (it holds a lambda, …), or None."""
    try:
        pickle.dumps(thing)
    except Exception as error:  # it may hold anything, and pickle fails in as many ways
        return str(error) or type(error).__name__
    return None


def why_not_share(trainer: Trainer) -> str | None:
    """The reason why what workers start with does not fit into shared memory, or None.

    It is found out beforehand because PyTorch crashes where it asks for too much.
    """
    free = free_shared_memory()
    if (reason := why_not_send(trainer.objective)) is not None:
        return (
            f"the loss or the metric cannot be sent to worker processes ({reason}): define them at the top of a module"
        )
    try:
        needed = count_shared(startup_arguments(trainer))
    except Exception as error:  # data of the user's own may hold anything, as a model may
        return f"the data cannot be sent to worker processes ({error or type(error).__name__})"
    if needed <= free:
        return None
    return f"model and data take {_megabytes(needed)} of shared memory, and {SHARED_MEMORY} has {_megabytes(free)} free"


def why_not_import(trainer: Trainer) -> str | None:
    """The reason why workers cannot import what the script itself defines (a model, data), or None."""
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
    TensorFinder(content).dump((startup_arguments(trainer), networks_of(trainer)))
    return b"__main__" in content.getvalue()


@contextmanager
def script_hidden(hidden: bool) -> Iterator[None]:
    """Within it, if `hidden`, a process that is started does not import the script."""
    main = sys.modules["__main__"]
    held: dict[str, Any] = {n: main.__dict__[n] for n in ("__file__", "__spec__") if n in main.__dict__}
    if hidden:
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


def _megabytes(size: float) -> str:
    """A number of bytes, as messages name it."""
    return f"{size / 2**20:,.1f} MiB"
