"""A Grid without network: the real ClientApp, called in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class InProcessGrid(Grid):
    """`nodes` maps node ids to node configs; every message is answered at once, failures by error messages."""

    def __init__(self, app: ClientApp, nodes: Mapping[int, Mapping[str, Any]], run_config: Mapping[str, Any]) -> None:
        # A Message is stamped with the process's identity, which Flower sets in the processes it starts.
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.app, self._replies = app, dict[str, Message]()
        self.contexts = {
            node: Context(1, node, dict(config), RecordDict(), dict(run_config)) for node, config in nodes.items()
        }

    def set_run(self, run: Any) -> None:
        """Nothing to know about the run."""

    @property
    def run(self) -> Any:
        """There is none."""
        return None

    def create_message(self, *_arguments: Any, **_more: Any) -> Message:
        """Flower deprecates it."""
        raise NotImplementedError("make a flwr.app.Message")

    def get_node_ids(self) -> Iterable[int]:
        """The nodes."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Have each message answered."""
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            ids.append(message.metadata.message_id)
            context = self.contexts.get(message.metadata.dst_node_id)
            try:
                reply = self.app(message, context) if context else None
            except Exception as error:  # what a SuperNode makes of an app that fails
                reply = Message(Error(code=2, reason=f"{type(error).__name__}: {error}"), reply_to=message)
            if reply is not None:  # a node that is gone answers nothing
                self._replies[ids[-1]] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to these messages."""
        return [self._replies.pop(name) for name in list(message_ids) if name in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Both at once."""
        del timeout
        return self.pull_messages(self.push_messages(messages))
