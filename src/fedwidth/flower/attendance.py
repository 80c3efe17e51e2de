"""Who is there: which client each node is, and the capacity it states or can pay for.

A node says which client it is. Where its key was registered under a name (`client-3`, as `register.sh` does it), it
cannot be another one. Whoever does not say so in time, or says what cannot be, gets a line in the log and is asked
again next round; nobody waits for it a second time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedwidth.devices.capacity import parse_capacity, sample_clients
from fedwidth.errors import FedwidthError, OptionError
from fedwidth.flower.access.enrolment import Enrolled
from fedwidth.flower.bounds import bound_replies
from fedwidth.flower.budgets import BUDGETS
from fedwidth.flower.exchange import Exchange, error_of, never_came, within
from fedwidth.flower.printable import printable
from fedwidth.flower.records import size_of
from fedwidth.flower.stragglers import Stragglers

MAX_BYTES = 16_384
"""Of an introduction: a few words and numbers."""
MIN_CAPACITY = 1 / 64
"""A claim below it is no width that anybody trains, unless the recipe has one."""
LIFE_SECONDS = 600.0
"""How long a question lives: an answer that comes late is found in a later round."""
REMINDER_SECONDS = 60.0


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
    def of(cls, id: int, content: RecordDict, clients: int, least: float = MIN_CAPACITY) -> Node:
        """What the node said, checked."""
        if (size := size_of(content)) > MAX_BYTES:
            raise OptionError(f"its introduction has {size:,} bytes, more than {MAX_BYTES:,}")
        said = content.get("node")
        if not isinstance(said, ConfigRecord):
            raise OptionError("it did not introduce itself")
        client = said.get("client")
        if type(client) is not int or not 0 <= client < clients:
            raise OptionError(f"it says it is client {printable(client, 40)}; clients are numbered 0 to {clients - 1}")
        capacity = parse_capacity(str(said["capacity"])) if "capacity" in said else None
        if capacity is not None and capacity < least:
            raise OptionError(f"it states the capacity {capacity:g}, below the least sensible one, {least:g}")
        numbers: dict[str, float] = {}
        for name in (*BUDGETS, "samples"):
            number = said.get(name, 1)
            if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number < math.inf:
                raise OptionError(f"its {name} is {printable(repr(number), 40)}, not a number above 0")
            numbers |= {name: float(number)} if name in said else {}
        return cls(id, client, capacity, numbers, numbers.pop("samples", None))


@dataclass
class Roll:
    """The nodes that are connected; those that are new are asked to introduce themselves."""

    grid: Grid
    clients: int
    capacity_of: Callable[[Node, int], float]
    """The capacity of a node in a round."""
    seconds: float = 20.0
    """How long an introduction is waited for."""
    enrolled: Callable[[], Mapping[int, Enrolled] | None] = lambda: None
    """Who is let in and what each may claim, as it is now; None: everybody, anything."""
    least_capacity: float = MIN_CAPACITY
    log: Callable[[str], None] = print
    nodes: dict[int, Node] = field(default_factory=dict)
    present: dict[int, Node] = field(default_factory=dict)
    """By client number, as of the last call."""
    stragglers: Stragglers = field(default_factory=Stragglers)
    quarantined: dict[int, int] = field(default_factory=dict)
    """The last round (from 1) of which a client is left out."""
    _said: dict[int, str] = field(default_factory=dict)
    """What the log says about a node that could not be entered."""
    _names: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._hellos = Exchange(self.grid)

    def call(self, *, again: bool = True) -> dict[int, Node]:
        """The connected nodes by client number; those that could not be entered before are asked `again`."""
        self._names = {node.node_id: node.name for node in self.grid.get_nodes()}
        connected, enrolled = set(self._names), self.enrolled()
        for node in list(self.nodes.values()):
            if enrolled is not None and node.client not in enrolled:
                del self.nodes[node.id]
        for id in self._hellos.waiting - connected:
            self._hellos.forget(id)
        unknown = connected - set(self.nodes)
        new = unknown - self._hellos.waiting - set(self._said)  # only for these one waits
        asked = unknown - self._hellos.waiting if again else new
        if asked:
            hello = {node: RecordDict({"hello": ConfigRecord({"clients": self.clients})}) for node in sorted(asked)}
            self._hellos.send(hello, "query", seconds=max(self.seconds, LIFE_SECONDS))
        bound_replies(self.grid, MAX_BYTES, seconds=self.seconds)
        still_waiting = within(self.seconds)
        for id, reply in self._hellos.replies(lambda: bool(new & self._hellos.waiting) and still_waiting()):
            self._take(id, reply, connected, enrolled)
        for id in sorted(self._hellos.waiting & new):
            self._leave_out(id, f"it has not introduced itself within {self.seconds:g} s")
        self.present = {node.client: node for node in self.nodes.values() if node.id in connected}
        return self.present

    def _take(self, id: int, reply: Message, connected: set[int], enrolled: Mapping[int, Enrolled] | None) -> None:
        try:
            if never_came(reply):
                raise OptionError(f"it has not introduced itself within {self.seconds:g} s")
            if (error := error_of(reply)) is not None:
                raise OptionError(error)
            node = Node.of(id, reply.content, self.clients, self.least_capacity)
            if self._names[id].startswith("client-") and self._names[id] != f"client-{node.client}":
                raise OptionError(f"it says it is client {node.client}, but is registered as {self._names[id]}")
            self._enter(node, connected, enrolled)
        except FedwidthError as error_here:
            said = reply.content.get("node") if reply.has_content() else None
            self._leave_out(id, str(error_here), said.get("client") if isinstance(said, ConfigRecord) else None)

    def _enter(self, node: Node, connected: set[int], enrolled: Mapping[int, Enrolled] | None) -> None:
        """Two connected nodes cannot be one client: it would count twice."""
        if enrolled is not None and node.client not in enrolled:
            raise OptionError(f"client {node.client} is not enrolled")
        for other in list(self.nodes.values()):
            if other.client == node.client and other.id != node.id:
                if other.id in connected:
                    raise OptionError(f"it says it is client {node.client}, which node {other.id} is already")
                del self.nodes[other.id]
        dealt = self.capacity_of(node, 0)  # a budget that no sub-model fits is seen here, not in the middle of a round
        if node.capacity is not None and dealt < node.capacity:
            who, limit = self.named(node.id, node.client), f"is enrolled for at most {dealt:g}"
            self.log(f"{who} states the capacity {node.capacity:g}, but {limit}: it is dealt {dealt:g}")
        self.nodes[node.id] = node
        if self._said.pop(node.id, None) is not None:
            self.log(f"{self.named(node.id)} takes part now")

    def _leave_out(self, id: int, why: str, client: object = None) -> None:
        if self._said.get(id) != why:
            self.log(f"{self.named(id, client)} is left out: {why}")
        self._said[id] = why

    def named(self, id: int, client: object = None) -> str:
        """A node by its id and by the client it is registered as, or says it is: people know clients."""
        name = self._names.get(id, "")
        client = self.nodes[id].client if id in self.nodes else client
        known = name if name.startswith("client-") else f"client {client}" if type(client) is int else name
        return f"node {id} ({printable(known, 40)})" if known else f"node {id}"

    def wait(self, number: int, seconds: float, *, round: int | None = None) -> dict[int, Node]:
        """The connected nodes once there are so many, for a round not counting those that are in quarantine then."""
        still_waiting, quiet, again = within(seconds), within(REMINDER_SECONDS), True
        while len(found := self._allowed(self.call(again=again), round)) < number:
            again = False
            if not still_waiting():
                out = len(self.present) - len(found)
                more = f", and {out} in quarantine" if out else ""
                raise OptionError(f"only {len(found)} of {number} nodes came within {seconds:g} seconds{more}")
            if not quiet():
                quiet, again = within(REMINDER_SECONDS), True
                self.log(f"{len(found)} of {number} nodes are there{self._missing(found)}")
            time.sleep(min(1.0, seconds))
        return found

    def _allowed(self, found: dict[int, Node], round: int | None) -> dict[int, Node]:
        """Those that are not in quarantine in a round; all of them where none is named."""
        if round is None:
            return found
        return {client: node for client, node in found.items() if self.quarantined.get(client, 0) <= round}

    def _missing(self, found: Collection[int]) -> str:
        """Who is not, in words, where that is known."""
        enrolled = self.enrolled() or {}
        gone = [str(client) for client in sorted(enrolled) if client not in found]
        return f"; not there: client {', '.join(gone[:20])}{' …' * (len(gone) > 20)}" if gone else ""

    def cohort(
        self, round: int, per_round: int, *, seed: int, found: Mapping[int, Node], least: int = 1
    ) -> list[tuple[int, float]]:
        """Who takes part: with every client connected and in time, the same draw as in a simulated run."""
        allowed = sorted(self._allowed(dict(found), round))
        there = [client for client in allowed if not self.stragglers.is_passed_over(client, round)]
        if len(there) < least:  # rather with them than not at all
            there = allowed
        drawn = sample_clients(len(there), min(per_round, len(there)), round=round, seed=seed)
        return [(there[place], self.capacity_of(found[there[place]], round)) for place in drawn]

    def note(self, round: int, late: Collection[int], answered: Collection[int]) -> None:
        """A round has ended with these clients late: they are drawn less often."""
        for client, rounds in self.stragglers.note(round, late=late, answered=answered).items():
            node = self.present.get(client)
            who = self.named(node.id) if node is not None else f"client {client}"
            again = f"{rounds} round{'s' * (rounds > 1)}"
            self.log(f"{who} has missed {self.stragglers.missed[client]} in a row: it is passed over for {again}")
