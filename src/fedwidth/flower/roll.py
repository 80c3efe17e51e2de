"""Who is there: which client each node is, and the capacity it states or can pay for.

A node says which client it is. Where its key was registered under a name (`client-3`, as `register.sh` does it), it
cannot be another one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedwidth.capacity import parse_capacity, sample_clients
from fedwidth.errors import FedwidthError, OptionError
from fedwidth.flower.exchange import error_of, exchange

BUDGETS = ("memory", "bytes", "operations")
MOST_CALLS = 3
"""How often a node that does not answer is asked who it is."""


@dataclass(frozen=True)
class Node:
    """A node that introduced itself."""

    id: int
    client: int
    capacity: float | None
    """Stated outright; None: see `budgets`, and without those the recipe's mix deals it one."""
    budgets: Mapping[str, float]
    samples: float | None = None
    """How many it has, where the server cannot know."""

    @classmethod
    def of(cls, id: int, content: RecordDict, clients: int) -> Node:
        """What the node said, checked."""
        said = content.get("node")
        if not isinstance(said, ConfigRecord):
            raise OptionError("it did not introduce itself")
        client = said.get("client")
        if type(client) is not int or not 0 <= client < clients:
            raise OptionError(f"it says it is client {client!r}; clients are numbered 0 to {clients - 1}")
        capacity = parse_capacity(str(said["capacity"])) if "capacity" in said else None
        numbers: dict[str, float] = {}
        for name in (*BUDGETS, "samples"):
            number = said.get(name, 1)
            if isinstance(number, bool) or not isinstance(number, (int, float)) or not number > 0:
                raise OptionError(f"its {name} is {number!r}, not a number above 0")
            numbers |= {name: float(number)} if name in said else {}
        return cls(id, client, capacity, numbers, numbers.pop("samples", None))


@dataclass
class Roll:
    """The nodes that are connected; new ones are asked to introduce themselves."""

    grid: Grid
    clients: int
    capacity_of: Callable[[Node, int], float]
    """The capacity of a node in a round."""
    seconds: float = 60.0
    log: Callable[[str], None] = print
    nodes: dict[int, Node] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    present: dict[int, Node] = field(default_factory=dict)
    """By client number, as of the last call."""
    _asked: Counter[int] = field(default_factory=Counter)

    def call(self) -> dict[int, Node]:
        """The connected nodes by client number."""
        names = {node.node_id: node.name for node in self.grid.get_nodes()}
        connected = set(names)
        self.refused &= connected
        new = sorted(connected - set(self.nodes) - self.refused)
        if new:
            self._asked.update(new)
            hello = {node: RecordDict({"hello": ConfigRecord({"clients": self.clients})}) for node in new}
            for id, reply in exchange(self.grid, hello, "query", seconds=self.seconds):
                try:
                    if (error := error_of(reply)) is not None:
                        raise OptionError(error)
                    node = Node.of(id, reply.content, self.clients)
                    if names[id].startswith("client-") and names[id] != f"client-{node.client}":
                        raise OptionError(f"it says it is client {node.client}, but is registered as {names[id]}")
                    self._enter(node, connected)
                except FedwidthError as error_here:
                    self.refused.add(id)
                    self.log(f"{_named(id, names[id], reply)} is left out: {error_here}")
        # One that never answers must not hold up every round.
        self.refused |= {id for id in new if id not in self.nodes and self._asked[id] >= MOST_CALLS}
        self.present = {node.client: node for node in self.nodes.values() if node.id in connected}
        return self.present

    def _enter(self, node: Node, connected: set[int]) -> None:
        """Two connected nodes cannot be one client: it would count twice."""
        for other in list(self.nodes.values()):
            if other.client == node.client and other.id != node.id:
                if other.id in connected:
                    raise OptionError(f"it says it is client {node.client}, which node {other.id} is already")
                del self.nodes[other.id]
        self.capacity_of(node, 0)  # a budget that no sub-model fits is seen here, not in the middle of a round
        self.nodes[node.id] = node

    def wait(self, number: int, seconds: float) -> dict[int, Node]:
        """The connected nodes once there are so many."""
        deadline = time.monotonic() + seconds
        while len(found := self.call()) < number:
            if time.monotonic() >= deadline:
                raise OptionError(f"only {len(found)} of {number} nodes came within {seconds:g} seconds")
            time.sleep(1.0)
        return found

    def cohort(self, round: int, per_round: int, *, seed: int, found: Mapping[int, Node]) -> list[tuple[int, float]]:
        """Who takes part: with every client connected, the same draw as in a simulated run."""
        there = sorted(found)
        drawn = sample_clients(len(there), min(per_round, len(there)), round=round, seed=seed)
        return [(there[place], self.capacity_of(found[there[place]], round)) for place in drawn]


def _named(id: int, name: str, reply: Message) -> str:
    """A node by its id and by the client it is registered as, or says it is: whoever reads the log knows clients."""
    said = reply.content.get("node") if reply.has_content() else None
    client = said.get("client") if isinstance(said, ConfigRecord) else None
    known = name if name.startswith("client-") else f"client {client}" if type(client) is int else name
    return f"node {id} ({known})" if known else f"node {id}"


def budgets_to_capacity(budgets: Mapping[str, float], parts: Any, *, passes: float) -> float:
    """The largest of the recipe's capacities that a node can pay for; `passes` are the samples it sees in a round.

    `bytes` are what a round sends down and up; `operations` the multiply-adds of its training, three forward passes
    a sample; `memory` what training needs (weights, gradients, the optimiser's moments, activations of one batch).
    """
    from fedwidth.cost import capacity_for

    training = parts.settings.training
    moments = 2 if training.optimiser != "sgd" else int(training.momentum > 0)
    return float(
        capacity_for(
            parts.model,
            parts.plan,
            parts.data.example(),
            memory=budgets.get("memory"),
            bytes=budgets["bytes"] / 2 if "bytes" in budgets else None,
            macs=budgets["operations"] / (3 * passes) if "operations" in budgets else None,
            batch=training.batch_size,
            moments=moments,
            choices=parts.capacities.values,
        )
    )
