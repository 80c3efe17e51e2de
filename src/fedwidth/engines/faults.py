"""Where an exception came from: round, client, capacity and stage, whichever engine trained the client."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from fedwidth.errors import ClientError, FedwidthError
from fedwidth.methods import Task


@contextmanager
def named(stage: str, round: int, *tasks: Task, run: str = "") -> Iterator[None]:
    """Within it, exceptions say where they came from: stage "cut", "train" or "add".

    An error of fedwidth keeps its type, any other becomes a `ClientError` with that one as its cause. Clients that
    train as one stack are all named, and `run` where several train together.
    """
    begin = f"{run}: " if run else ""
    try:
        yield
    except ClientError:
        raise
    except FedwidthError as error:
        raise type(error)(f"{begin}{error} ({describe(stage, round, *tasks)})") from error
    except Exception as error:
        raise ClientError(f"{begin}{describe(stage, round, *tasks)}: {_summarise(error)}") from error


def out_of_memory(error: BaseException | None) -> bool:
    """Whether the device had no memory left; some libraries on it say so in words only."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        if isinstance(error, RuntimeError) and "out of memory" in str(error).lower():
            return True
        # A capture that failed ends with an error of its own, raised while that of the memory was on its way.
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def free_memory(device: torch.device, release: Callable[[], None]) -> None:
    """Give the memory of what `release` lets go of back to the device, once what was queued on it is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    release()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def describe(stage: str, round: int, *tasks: Task) -> str:
    """Round, clients, capacities and stage, as messages name them."""
    clients = ", ".join(str(task.client) for task in tasks)
    capacities = ", ".join(f"{capacity:g}" for capacity in dict.fromkeys(float(task.capacity) for task in tasks))
    return f"round {round}, client{'s' * (len(tasks) > 1)} {clients}, capacity {capacities}, stage {stage}"


def _summarise(error: Exception) -> str:
    """Type, message and line, for those who see the message alone: the last line that is not PyTorch's own."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(torch.__file__).parent not in Path(frame.filename).parents]
    where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    late = (
        "; a GPU reports late, so it may have been another client of this round" if "CUDA error" in str(error) else ""
    )
    return f"{type(error).__name__}: {error}{where}{late}"
