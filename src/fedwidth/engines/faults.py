"""Error messages that say where an exception came from: round, client, capacity and stage, with every engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedwidth.errors import ClientError, FedwidthError
from fedwidth.importing import what_failed
from fedwidth.methods import Task


@contextmanager
def error_context(stage: str, round: int, *tasks: Task, run: str = "") -> Iterator[None]:
    """Add the round, the clients and the stage ("cut", "train" or "add") to exceptions raised within.

    An error of fedwidth keeps its type, any other becomes a `ClientError` with that one as its cause. Clients that
    train as one stack are all named, and so is the `run` where several runs train together.
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


def describe(stage: str, round: int, *tasks: Task) -> str:
    """The round, clients, capacities and stage in the words of error messages."""
    clients = ", ".join(str(task.client) for task in tasks)
    capacities = ", ".join(f"{capacity:g}" for capacity in dict.fromkeys(float(task.capacity) for task in tasks))
    return f"round {round}, client{'s' * (len(tasks) > 1)} {clients}, capacity {capacities}, stage {stage}"


def _summarise(error: Exception) -> str:
    """What failed and where, in one line."""
    late = (
        "; a GPU reports late, so it may have been another client of this round" if "CUDA error" in str(error) else ""
    )
    return f"{what_failed(error)}{late}"
