"""The ClientApp: hands each task to the device's resident trainer, or trains in this process where there is none.

Flower starts a new process for every message, so this file imports only flwr and the standard library; torch is
imported when a task has to be trained in this process. It is copied into app folders, beside `refusals.py`, `wire.py`
and `recipe.toml`.

A device is configured by `flower-supernode --node-config`:

    client=3                 its number among the recipe's clients (needed)
    capacity="1/4"           the width that it trains; or what it can spend instead:
    memory=…  bytes=…  operations=…    bytes of memory, bytes a round down and up, multiply-adds a round
    samples=…                how many training samples it has, where only it knows (for `operations`)
    trainer="/path/to.sock"  the socket of its resident trainer
    threads=4                threads to train with (1: the same bits as everywhere)
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from .refusals import check_client, check_load
from .wire import Raw, pack, receive, send, unpack

STYPE = "fedwidth.raw"
"""What Flower is told about the form of our arrays: raw bytes."""
WAIT_SECONDS = 20.0
"""How long to wait for a trainer that is being started again."""
SHARE = 0.9
"""The share of a task's time in which it must be trained; the rest is left to report that it was not enough."""
WHY = ".why"
"""The ending of the file beside the trainer's socket that says why the last trainer was ended."""
STATED = ("client", "capacity", "memory", "bytes", "operations", "samples")
"""The keys of the node config that are part of a node's introduction."""


def client_app(recipe: str | None = None) -> ClientApp:
    """The ClientApp of a recipe, given as TOML text; None: of the `recipe.toml` beside this file."""
    app = ClientApp()
    text = recipe if recipe is not None else _recipe_beside()

    @app.query()
    def introduce(message: Message, context: Context) -> Message:
        """Answer which client this device is and what it can afford."""
        stated: dict[str, Any] = {name: context.node_config[name] for name in STATED if name in context.node_config}
        return Message(RecordDict({"node": ConfigRecord(stated)}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """Train the sub-model that came with the message."""
        facts = dict[str, Any](message.content.config_records["task"])
        check_client(facts.get("client"), context.node_config.get("client"))
        load = str(context.run_config.get("load", ""))
        if recipe is None:
            check_load(load, Path(__file__).parent.with_name("pyproject.toml"))
        facts |= {"recipe": text, "load": load}
        facts["threads"] = int(context.node_config.get("threads", 1))
        facts["seconds"] = SHARE * message.metadata.ttl
        arrays = message.content.array_records["arrays"]
        tensors = {name: (array.dtype, tuple(array.shape), array.data) for name, array in arrays.items()}
        answer, trained = train_block(facts, tensors, str(context.node_config.get("trainer", "")))
        records = {name: Array(dtype, shape, STYPE, data) for name, (dtype, shape, data) in trained.items()}
        content = RecordDict({"answer": ConfigRecord(answer), "arrays": ArrayRecord(records)})
        return Message(content, reply_to=message)

    return app


def train_block(
    facts: Mapping[str, Any], tensors: Mapping[str, Raw], trainer: str
) -> tuple[dict[str, Any], dict[str, Raw]]:
    """Have the resident trainer at a socket train a task; where there is no trainer, train in this process.

    A trainer that ends without an answer, or does not answer in time, is an error: the same would happen again here.
    """
    connection = _connect(trainer) if trainer else None
    if connection is None:
        from fedwidth.flower.node.training import train_here

        return train_here(facts, tensors)
    begun, seconds = time.time(), facts.get("seconds")
    with connection:
        connection.settimeout(seconds)
        try:
            send(connection, pack(facts, tensors))
            answer, trained = unpack(receive(connection))
        except TimeoutError:
            raise RuntimeError(f"the trainer did not answer within {seconds:g} seconds") from None
        except (OSError, EOFError):
            raise RuntimeError(f"the trainer ended before it answered: {_why_ended(trainer, begun)}") from None
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer, trained


def _connect(trainer: str) -> socket.socket | None:
    """A connection to the trainer; None where there is no trainer."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(trainer)
            return connection
        except OSError as error:
            connection.close()
            if not Path(trainer).exists() or time.monotonic() > deadline:
                print(f"no resident trainer at {trainer} ({error}); training in this process", flush=True)
                return None
        time.sleep(0.5)


def _why_ended(trainer: str, since: float) -> str:
    """Why the trainer was ended, as `device.py` has written it down."""
    path = Path(trainer + WHY)
    for _ in range(20):
        if path.exists() and path.stat().st_mtime >= since - 1.0:
            return path.read_text()
        time.sleep(0.1)
    return "it was killed, or ran out of memory"


def _recipe_beside() -> str:
    path = Path(__file__).with_name("recipe.toml")
    return path.read_text() if path.exists() else os.environ.get("FEDWIDTH_RECIPE", "")


app = client_app()
"""The ClientApp that the app folder's pyproject.toml names."""

__all__ = ["app", "client_app", "train_block"]
