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
    min-clients=8            clients that a secure sum must have for this device, where the recipe asks for fewer

Where the recipe has secure sums, the device's part in them is in its trainer: this process only passes messages on, and
without a trainer there are none. What the server asks for is done by the recipe and the roster beside this file, which
the operator has signed.
"""

from __future__ import annotations

import os
import socket
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from .refusals import check_client, check_load
from .wire import INTRODUCE, SECURE, TRAIN, Raw, pack, receive, send, unpack

STYPE = "fedwidth.raw"
"""What Flower is told about the form of our arrays: raw bytes."""
WAIT_SECONDS = 20.0
"""How long to wait for a trainer that is being started again."""
SHARE = 0.9
"""The share of a task's time in which it must be trained; the rest is left to report that it was not enough."""
WHY = ".why"
"""The ending of the file beside the trainer's socket that says why the last trainer was ended."""
STATED = ("client", "capacity", "memory", "bytes", "operations", "samples", "group")
"""The keys of the node config that are part of a node's introduction."""


def client_app(recipe: str | None = None, roster: str | None = None) -> ClientApp:
    """The ClientApp of a recipe and a roster, given as TOML text; None: of the files beside this one."""
    app = ClientApp()
    text = recipe if recipe is not None else _beside("recipe.toml") or os.environ.get("FEDWIDTH_RECIPE", "")
    devices = roster if roster is not None else _beside("roster.toml")
    is_secure = tomllib.loads(text).get("secure", {}).get("enabled") is True

    def facts_of(context: Context, message: Message) -> dict[str, Any]:
        """What the trainer is told by this device and the signed app, whatever the server says."""
        config, load = context.node_config, str(context.run_config.get("load", ""))
        if recipe is None:
            check_load(load, Path(__file__).parent.with_name("pyproject.toml"))
        facts: dict[str, Any] = {"recipe": text, "load": load, "seconds": SHARE * message.metadata.ttl}
        if is_secure:
            facts |= {"roster": devices, "min_clients": int(config.get("min-clients", 0))}
        return facts

    @app.query()
    def introduce(message: Message, context: Context) -> Message:
        """Answer which client this device is and what it can afford; for secure sums, with its key in this run."""
        stated: dict[str, Any] = {name: context.node_config[name] for name in STATED if name in context.node_config}
        if is_secure:
            run = str(dict(message.content.config_records["hello"]).get("run", ""))
            facts = {"stage": INTRODUCE, "run": run, "client": context.node_config.get("client")}
            facts |= facts_of(context, message)
            answer, _ = ask_trainer(facts, {}, str(context.node_config.get("trainer", "")))
            stated |= {name: bytes.fromhex(answer[name]) for name in ("key", "signature")}
        return Message(RecordDict({"node": ConfigRecord(stated)}), reply_to=message)

    @app.query(SECURE)
    def secure(message: Message, context: Context) -> Message:
        """Open a round of secure sums, or share for another; the trainer decides whether it does."""
        facts = dict[str, Any](message.content.config_records["secure"])
        check_client(facts.get("client"), context.node_config.get("client"))
        facts |= {"stage": SECURE, **facts_of(context, message)}
        answer, found = ask_trainer(facts, _tensors(message), str(context.node_config.get("trainer", "")))
        return Message(RecordDict({"answer": ConfigRecord(answer), "arrays": _arrays(found)}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """Train the sub-model that came with the message."""
        facts = dict[str, Any](message.content.config_records["task"])
        check_client(facts.get("client"), context.node_config.get("client"))
        facts |= {"stage": TRAIN, **facts_of(context, message)}
        facts["threads"] = int(context.node_config.get("threads", 1))
        trainer = str(context.node_config.get("trainer", ""))
        ask = ask_trainer if is_secure else train_block
        answer, trained = ask(facts, _tensors(message), trainer)
        return Message(RecordDict({"answer": ConfigRecord(answer), "arrays": _arrays(trained)}), reply_to=message)

    return app


def _tensors(message: Message) -> dict[str, Raw]:
    arrays = message.content.array_records["arrays"]
    return {name: (array.dtype, tuple(array.shape), array.data) for name, array in arrays.items()}


def _arrays(tensors: Mapping[str, Raw]) -> ArrayRecord:
    return ArrayRecord({name: Array(dtype, shape, STYPE, data) for name, (dtype, shape, data) in tensors.items()})


def train_block(
    facts: Mapping[str, Any], tensors: Mapping[str, Raw], trainer: str
) -> tuple[dict[str, Any], dict[str, Raw]]:
    """Have the resident trainer at a socket train a task; where there is no trainer, train in this process."""
    connection = _connect(trainer) if trainer else None
    if connection is None:
        from fedwidth.deployment.node.training import train_here

        print(f"no resident trainer at {trainer!r}; training in this process", flush=True)
        return train_here(facts, tensors)
    return _ask(connection, facts, tensors, trainer)


def ask_trainer(
    facts: Mapping[str, Any], tensors: Mapping[str, Raw], trainer: str
) -> tuple[dict[str, Any], dict[str, Raw]]:
    """Have the resident trainer at a socket do what only it can, because it alone has the secrets."""
    connection = _connect(trainer) if trainer else None
    if connection is None:
        raise RuntimeError(
            "secure sums need the resident trainer, and there is none: start this device by its start.sh"
        )
    return _ask(connection, facts, tensors, trainer)


def _ask(
    connection: socket.socket, facts: Mapping[str, Any], tensors: Mapping[str, Raw], trainer: str
) -> tuple[dict[str, Any], dict[str, Raw]]:
    """The trainer's answer.

    A trainer that ends without an answer, or does not answer in time, is an error: the same would happen again here.
    """
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
                print(f"no resident trainer at {trainer}: {error}", flush=True)
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


def _beside(name: str) -> str:
    path = Path(__file__).with_name(name)
    return path.read_text() if path.exists() else ""


app = client_app()
"""The ClientApp that the app folder's pyproject.toml names."""

__all__ = ["app", "ask_trainer", "client_app", "train_block"]
