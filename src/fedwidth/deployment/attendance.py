"""Which nodes are connected, which client each of them is, and the capacity that it states or can pay for.

The server asks every new node to introduce itself. A node whose key was registered under a name (`client-3`, as
`register.sh` does it) cannot say that it is another client. A node that does not answer in time, or says what cannot be
true, gets a line in the log and is asked again next round, but a round waits for it only once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedwidth.deployment.access.enrolment import Enrolled
from fedwidth.deployment.budgets import BUDGETS
from fedwidth.deployment.exchange import Exchange, error_of, never_came, within
from fedwidth.deployment.records import size_of
from fedwidth.deployment.reply_bounds import bound_replies
from fedwidth.deployment.stragglers import Stragglers
from fedwidth.devices.capacity import parse_capacity, sample_clients
from fedwidth.errors import FedwidthError, OptionError
from fedwidth.printable import printable

MAX_BYTES = 16_384
"""Size of an introduction, which holds a few words and numbers."""
MAX_GROUP = 64
"""Characters of a group's name."""
MIN_CAPACITY = 1 / 64
"""The smallest capacity that a node may state, unless the recipe has a smaller one."""
LIFE_SECONDS = 600.0
"""How long a question to a node stays open: an answer that comes late is found in a later round."""
REMINDER_SECONDS = 60.0
"""How often the log says which nodes are still missing."""


@dataclass(frozen=True)
class Introduction:
    """What a node has said about itself, checked."""

    node: int
    """The node's number, which Flower gives it."""
    client: int
    capacity: float | None
    """The capacity that it states; None: its budgets decide, and without budgets the recipe's mix of capacities."""
    budgets: Mapping[str, float]
    """What it can spend, by the names in `BUDGETS`."""
    samples: float | None = None
    """How many training samples it has, where only the node knows."""
    key: bytes = b""
    """Its public key in this run, where the run has secure sums, ..."""
    signature: bytes = b""
    """... and the signature of its device."""
    group: str = ""
    """The group of devices that it says it is of, such as a ward or a site."""

    @classmethod
    def of(cls, node: int, content: RecordDict, clients: int, min_capacity: float = MIN_CAPACITY) -> Introduction:
        """Read a node's introduction; `OptionError` where it cannot be true."""
        if (size := size_of(content)) > MAX_BYTES:
            raise OptionError(f"its introduction has {size:,} bytes, more than {MAX_BYTES:,}")
        record = content.get("node")
        if not isinstance(record, ConfigRecord):
            raise OptionError("it did not introduce itself")
        client = record.get("client")
        if type(client) is not int or not 0 <= client < clients:
            raise OptionError(f"it says it is client {printable(client, 40)}; clients are numbered 0 to {clients - 1}")
        capacity = parse_capacity(str(record["capacity"])) if "capacity" in record else None
        if capacity is not None and capacity < min_capacity:
            raise OptionError(f"it states the capacity {capacity:g}, below the least sensible one, {min_capacity:g}")
        numbers: dict[str, float] = {}
        for name in (*BUDGETS, "samples"):
            number = record.get(name, 1)
            if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number < math.inf:
                raise OptionError(f"its {name} is {printable(repr(number), 40)}, not a number above 0")
            numbers |= {name: float(number)} if name in record else {}
        own = [record.get(name, b"") for name in ("key", "signature")]
        key, signature = (part if isinstance(part, bytes) else b"" for part in own)
        group = record.get("group", "")
        if not isinstance(group, str) or len(group) > MAX_GROUP:
            raise OptionError(
                f"its group is {printable(repr(group), 40)}, not a name of at most {MAX_GROUP} characters"
            )
        return cls(node, client, capacity, numbers, numbers.pop("samples", None), key, signature, group)


@dataclass
class Attendance:
    """Keeps track of the nodes that are connected, and asks new ones to introduce themselves."""

    grid: Grid
    clients: int
    """How many clients the recipe has."""
    capacity_of: Callable[[Introduction, int], float]
    """Says what capacity a node trains in a round."""
    seconds: float = 20.0
    """How long to wait for the introductions of new nodes."""
    enrolled: Callable[[], Mapping[int, Enrolled] | None] = lambda: None
    """Says which clients are enrolled at this moment, and what each may claim; None: every client, and any claim."""
    min_capacity: float = MIN_CAPACITY
    hello: Mapping[str, str] = field(default_factory=dict)
    """What nodes are told when they are asked to introduce themselves."""
    groups: Collection[str] = ()
    """The groups that take part; none: every device does, whatever its group."""
    check: Callable[[Introduction], None] = lambda _: None
    """Refuses an introduction for more reasons than there are here."""
    log: Callable[[str], None] = print
    note: Callable[..., None] = lambda _, **__: None
    """Appends an event with its facts to the audit log."""
    introductions: dict[int, Introduction] = field(default_factory=dict)
    """The introductions that were accepted, by node; the node need not be connected now."""
    present: dict[int, Introduction] = field(default_factory=dict)
    """The introductions of the nodes that were connected when `refresh` was last called, by client."""
    stragglers: Stragglers = field(default_factory=Stragglers)
    quarantined: dict[int, int] = field(default_factory=dict)
    """For each client in quarantine the last round, counted from 1, in which it is left out."""
    _left_out: dict[int, str] = field(default_factory=dict)
    """Why a node's introduction was not accepted, by node: the line that the log has about it."""
    _joined: set[tuple[int, int]] = field(default_factory=set)
    """The nodes of which the audit log has said that they joined, with the client of each."""
    _names: dict[int, str] = field(default_factory=dict)
    """The names under which the connected nodes were registered, by node."""

    def __post_init__(self) -> None:
        self._questions = Exchange(self.grid)

    def refresh(self, *, ask_again: bool = True) -> dict[int, Introduction]:
        """The connected nodes, by client, after new ones have introduced themselves.

        With `ask_again`, nodes whose introductions were not accepted before are asked once more.
        """
        self._names = {node.node_id: node.name for node in self.grid.get_nodes()}
        connected, enrolled = set(self._names), self.enrolled()
        for known in list(self.introductions.values()):
            if enrolled is not None and known.client not in enrolled:
                del self.introductions[known.node]
        questions = self._questions
        for node in questions.waiting - connected:
            questions.forget(node)
        unknown = connected - set(self.introductions)
        new = unknown - questions.waiting - set(self._left_out)  # a round waits for these alone
        asked = unknown - questions.waiting if ask_again else new
        if asked:
            words: dict[str, Any] = {"clients": self.clients, **self.hello}
            hello = {node: RecordDict({"hello": ConfigRecord(words)}) for node in sorted(asked)}
            questions.send(hello, "query", seconds=max(self.seconds, LIFE_SECONDS))
        bound_replies(self.grid, MAX_BYTES, seconds=self.seconds)
        in_time = within(self.seconds)
        for node, reply in questions.replies(lambda: bool(new & questions.waiting) and in_time()):
            self._read(node, reply, connected, enrolled)
        for node in sorted(questions.waiting & new):
            self._leave_out(node, f"it has not introduced itself within {self.seconds:g} s")
        self.present = {known.client: known for known in self.introductions.values() if known.node in connected}
        return self.present

    def _read(self, node: int, reply: Message, connected: set[int], enrolled: Mapping[int, Enrolled] | None) -> None:
        """Accept a node's introduction, or leave the node out with a line that says why."""
        try:
            if never_came(reply):
                raise OptionError(f"it has not introduced itself within {self.seconds:g} s")
            if (error := error_of(reply)) is not None:
                raise OptionError(error)
            introduction = Introduction.of(node, reply.content, self.clients, self.min_capacity)
            if self._names[node].startswith("client-") and self._names[node] != f"client-{introduction.client}":
                raise OptionError(
                    f"it says it is client {introduction.client}, but is registered as {self._names[node]}"
                )
            self.check(introduction)
            self._accept(introduction, connected, enrolled)
        except FedwidthError as error_here:
            record = reply.content.get("node") if reply.has_content() else None
            client = record.get("client") if isinstance(record, ConfigRecord) else None
            self._leave_out(node, str(error_here), client)

    def _accept(self, introduction: Introduction, connected: set[int], enrolled: Mapping[int, Enrolled] | None) -> None:
        """Accept an introduction. Two connected nodes cannot be one client: its data would count twice."""
        if self.groups and introduction.group not in self.groups:
            wanted, own = ", ".join(sorted(self.groups)), printable(introduction.group or "none", 40)
            raise OptionError(f"its group is {own}, and this run is for {wanted}")
        if enrolled is not None and introduction.client not in enrolled:
            raise OptionError(f"client {introduction.client} is not enrolled")
        for other in list(self.introductions.values()):
            if other.client == introduction.client and other.node != introduction.node:
                if other.node in connected:
                    raise OptionError(f"it says it is client {introduction.client}, which node {other.node} is already")
                del self.introductions[other.node]
        capacity = self.capacity_of(
            introduction, 0
        )  # a budget that no sub-model fits is an error here, not in mid-round
        if introduction.capacity is not None and capacity < introduction.capacity:
            who, limit = self.named(introduction.node, introduction.client), f"is enrolled for at most {capacity:g}"
            self.log(f"{who} states the capacity {introduction.capacity:g}, but {limit}: it is dealt {capacity:g}")
        self.introductions[introduction.node] = introduction
        if (known := (introduction.node, introduction.client)) not in self._joined:
            self._joined.add(known)
            self.note("joined", client=introduction.client, capacity=capacity, group=introduction.group or None)
        if self._left_out.pop(introduction.node, None) is not None:
            self.log(f"{self.named(introduction.node)} takes part now")

    def forget(self, client: int) -> None:
        """Have a client introduce itself again before it is drawn the next time."""
        for node in [node for node, known in self.introductions.items() if known.client == client]:
            del self.introductions[node]

    def _leave_out(self, node: int, why: str, client: object = None) -> None:
        """Remember why a node is left out, and say so in the log once."""
        if self._left_out.get(node) != why:
            self.log(f"{self.named(node, client)} is left out: {why}")
            self.note("left out", device=self.named(node, client), why=printable(why))
        self._left_out[node] = why

    def named(self, node: int, client: object = None) -> str:
        """A node in words: its number, and the client that it is registered as or says it is, which people know."""
        name = self._names.get(node, "")
        client = self.introductions[node].client if node in self.introductions else client
        known = name if name.startswith("client-") else f"client {client}" if type(client) is int else name
        return f"node {node} ({printable(known, 40)})" if known else f"node {node}"

    def wait(self, number: int, seconds: float, *, round: int | None = None) -> dict[int, Introduction]:
        """Wait until so many nodes are connected, and return them by client; `OptionError` after so many seconds.

        Where a `round` is given, clients that are in quarantine in that round do not count.
        """
        in_time, quiet, ask_again = within(seconds), within(REMINDER_SECONDS), True
        while len(found := self._without_quarantined(self.refresh(ask_again=ask_again), round)) < number:
            ask_again = False
            if not in_time():
                out = len(self.present) - len(found)
                more = f", and {out} in quarantine" if out else ""
                raise OptionError(f"only {len(found)} of {number} nodes came within {seconds:g} seconds{more}")
            if not quiet():
                quiet, ask_again = within(REMINDER_SECONDS), True
                self.log(f"{len(found)} of {number} nodes are there{self._missing(found)}")
            time.sleep(min(1.0, seconds))
        return found

    def _without_quarantined(self, found: dict[int, Introduction], round: int | None) -> dict[int, Introduction]:
        """The nodes whose clients are not in quarantine in a round; all of them where no round is given."""
        if round is None:
            return found
        return {
            client: introduction for client, introduction in found.items() if self.quarantined.get(client, 0) <= round
        }

    def _missing(self, found: Collection[int]) -> str:
        """The enrolled clients that are not among those found, in words."""
        enrolled = self.enrolled() or {}
        missing = [str(client) for client in sorted(enrolled) if client not in found]
        return f"; not there: client {', '.join(missing[:20])}{' …' * (len(missing) > 20)}" if missing else ""

    def cohort(
        self, round: int, per_round: int, *, seed: int, found: Mapping[int, Introduction], min_clients: int = 1
    ) -> list[tuple[int, float]]:
        """Draw a round's clients, with the capacity of each.

        With every client connected and none of them late before, it is the draw of a simulated run.
        """
        allowed = sorted(self._without_quarantined(dict(found), round))
        available = [client for client in allowed if not self.stragglers.is_passed_over(client, round)]
        if len(available) < min_clients:  # rather with stragglers than not at all
            available = allowed
        drawn = sample_clients(len(available), min(per_round, len(available)), round=round, seed=seed)
        clients = [available[position] for position in drawn]
        return [(client, self.capacity_of(found[client], round)) for client in clients]

    def end_round(self, round: int, late: Collection[int], answered: Collection[int]) -> None:
        """Take down that a round has ended with these clients late: they are drawn less often from now on."""
        for client, rounds in self.stragglers.note(round, late=late, answered=answered).items():
            introduction = self.present.get(client)
            who = self.named(introduction.node) if introduction is not None else f"client {client}"
            again = f"{rounds} round{'s' * (rounds > 1)}"
            self.log(f"{who} has missed {self.stragglers.missed[client]} in a row: it is passed over for {again}")
