"""Devices with secure sums in one process: resident trainers in threads, the real ClientApp, a grid without network."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

from flwr.app import Context, Message
from in_process import InProcessGrid

from fedwidth.deployment.access.keys import make_node_key
from fedwidth.deployment.node import trainer
from fedwidth.deployment.node.client_app import client_app


class SecureNodes:
    """One device for each client, with a key and a trainer of its own; `grid` connects them with a server.

    `spoil(client, message, reply)` may change or lose what a node answers: it returns the reply, or None.
    """

    def __init__(self, folder: Path, recipe: str, clients: int, *, config: dict[int, dict[str, Any]] | None = None):
        self.folder, self.recipe, self.clients = folder, recipe, clients
        self.sockets = Path(tempfile.mkdtemp(prefix="fw"))  # paths of sockets must be short
        self.residents: dict[int, trainer.Resident] = {}
        self._listeners = []
        for client in range(clients):
            (folder / f"client-{client}").mkdir(parents=True, exist_ok=True)
            if not self.key(client).exists():
                make_node_key(self.key(client), f"client-{client}")
            self.start(client)
        lines = [f'client-{c} = "{" ".join(self.key(c, "key.pub").read_text().split()[:2])}"' for c in range(clients)]
        self.roster = "\n".join(lines) + "\n"
        self.spoil: Callable[[int, Message, Message], Message | None] = lambda client, message, reply: reply
        self.before: Callable[[int, Message], None] = lambda client, message: None
        self.seen: list[tuple[int, Message, Message]] = []
        """Every message with its reply."""
        app = client_app(recipe, self.roster)

        def call(message: Message, context: Context) -> Message | None:
            client = int(context.node_config["client"])
            self.before(client, message)
            reply = app(message, context)
            self.seen.append((client, message, reply))
            return self.spoil(client, message, reply)

        nodes = {
            100 + c: {"client": c, "trainer": str(self.socket(c)), **(config or {}).get(c, {})} for c in range(clients)
        }
        self.grid = InProcessGrid(call, nodes, {})

    def key(self, client: int, name: str = "key") -> Path:
        return self.folder / f"client-{client}" / name

    def socket(self, client: int) -> Path:
        return self.sockets / str(client)

    def start(self, client: int) -> None:
        """Start the trainer of a client, or start it again: what it had in memory is gone."""
        self.socket(client).unlink(missing_ok=True)
        listener = trainer.listen(self.socket(client))
        self.residents[client] = trainer.Resident(self.key(client))
        self._listeners.append(listener)
        arguments = [listener, os.getppid(), self.residents[client]]
        threading.Thread(target=trainer.serve, args=arguments, daemon=True).start()

    def capacity(self, message: Message) -> float:
        """The capacity of a task."""
        return float(message.content.config_records["task"]["capacity"])

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()


def kind_of(message: Message) -> str:
    """What a message asks for: introduce, share, train, open, or "open share" for both at once."""
    kind = message.metadata.message_type
    if kind == "query.secure":
        return " ".join(sorted(message.content.array_records["arrays"]))
    return "train" if kind.startswith("train") else "introduce"


@contextmanager
def secure_nodes(folder: Path, recipe: str, clients: int, **more: Any) -> Iterator[SecureNodes]:
    """Devices that are closed in the end."""
    made = SecureNodes(folder, recipe, clients, **more)
    try:
        yield made
    finally:
        made.close()
