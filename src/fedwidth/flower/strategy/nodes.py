"""The nodes of someone's own Flower app: which client each is, and the width that it can afford.

A node is asked once, when it is first seen. One that fails, says nothing in time or says what cannot be true is named
in the log and asked again in the next round.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedwidth.devices.capacity import parse_capacity, sample_clients
from fedwidth.errors import FedwidthError, OptionError
from fedwidth.flower.strategy.orders import KEY
from fedwidth.printable import printable


@dataclass(frozen=True)
class Node:
    """A node that has said what it can afford."""

    id: int
    """Flower's number of the node."""
    client: int
    """Its number among the app's clients: the one it states, else the first that is free."""
    capacity: float


@dataclass
class Nodes:
    """The nodes that are known."""

    seconds: float = 60.0
    """How long to wait for what new nodes say."""
    log: Callable[[str], None] = print
    known: dict[int, Node] = field(default_factory=dict)
    """By Flower's number; a node need not be connected now."""
    silent: dict[int, str] = field(default_factory=dict)
    """Nodes that have not said what they can afford, and why."""

    def wait(self, grid: Grid, number: int) -> dict[int, Node]:
        """The nodes that are connected and known, by client, as soon as so many are connected."""
        said = -math.inf
        while len(connected := list(grid.get_node_ids())) < number:
            if time.monotonic() - said > 30:
                said = time.monotonic()
                self.log(f"waiting for nodes: {len(connected)} are connected, {number} are needed")
            time.sleep(1)
        self._ask(grid, [node for node in connected if node not in self.known])
        return {self.known[node].client: self.known[node] for node in connected if node in self.known}

    def _ask(self, grid: Grid, new: Iterable[int]) -> None:
        questions = [
            Message(RecordDict({KEY: ConfigRecord()}), dst_node_id=node, message_type=f"query.{KEY}") for node in new
        ]
        if not questions:
            return
        self.silent = {
            message.metadata.dst_node_id: f"it has not answered within {self.seconds:g} s" for message in questions
        }
        stated: dict[int, tuple[int | None, float]] = {}
        for reply in grid.send_and_receive(questions, timeout=self.seconds):
            node = reply.metadata.src_node_id
            try:
                if reply.has_error():
                    raise OptionError(f"it failed: {reply.error.reason}")
                stated[node] = _read(reply.content)
                del self.silent[node]
            except FedwidthError as error:
                self.silent[node] = printable(error)
        # Those that state a number come first, in its order, so that numbers do not depend on the order of answers.
        for node, (number, capacity) in sorted(stated.items(), key=lambda item: (item[1][0] is None, item[1][0] or 0)):
            taken = {other.client: other.id for other in self.known.values()}
            if number in taken and taken[number] in grid.get_node_ids():
                self.silent[node] = f"it says it is client {number}, which node {taken[number]} is already"
                continue
            if number in taken:  # the node has come back with a new number of Flower's
                del self.known[taken[number]]
            free = next(n for n in range(len(taken) + 1) if n not in taken) if number is None else number
            self.known[node] = Node(node, free, capacity)
        for node, why in self.silent.items():
            self.log(f"node {node} is left out: {why}")


def draw(found: dict[int, Node], number: int, *, round: int, seed: int) -> list[Node]:
    """The nodes of a round: drawn from (seed, round) and the clients that are there, in order of drawing."""
    clients = sorted(found)
    return [
        found[clients[at]] for at in sample_clients(len(clients), min(number, len(clients)), round=round, seed=seed)
    ]


def _read(content: RecordDict) -> tuple[int | None, float]:
    """The client's number and capacity that a node states."""
    record = content.get(KEY)
    if not isinstance(record, ConfigRecord):
        raise OptionError("it did not say what it can afford: its ClientApp needs introduce(app)")
    number = record.get("client")
    if number is not None and (type(number) is not int or number < 0):
        raise OptionError(f"it says it is client {printable(number, 40)}, which is no whole number from 0 on")
    return number, parse_capacity(printable(record.get("capacity"), 40))
