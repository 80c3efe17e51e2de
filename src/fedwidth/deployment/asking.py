"""Asks the clients of a round, and waits for their answers as long as it should: one exchange of a round.

A client that is late, gone, failed or answers what must not count is named with the reason, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedwidth.deployment.exchange import Exchange, error_of, never_came
from fedwidth.deployment.patience import Patience
from fedwidth.deployment.records import size_of
from fedwidth.deployment.reply_bounds import UNREAD, bound_replies
from fedwidth.errors import ClientError, FedwidthError, UpdateError
from fedwidth.printable import printable


@dataclass
class Outcome:
    """Who has answered, and why the others have not."""

    answered: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)
    """Clients that were asked and from which nothing came."""
    absent: dict[int, str] = field(default_factory=dict)
    """By client why it does not count; late ones too."""
    refused: set[int] = field(default_factory=set)
    """Clients that sent something which was refused."""


@dataclass(frozen=True)
class Waiting:
    """How long an exchange waits for answers."""

    quorum: float = 1.0
    """Share of the wanted answers after which it waits only as long again as these took."""
    patience_seconds: float = 60.0
    """How long it waits after the quorum at least."""
    seconds: float = 600.0
    """How long it waits at most."""


@dataclass(frozen=True)
class Asking:
    """Sends clients messages, each its own, and takes their answers as they come."""

    grid: Grid
    nodes: Callable[[], Mapping[int, int]]
    """Says which nodes are connected at this moment: client -> node."""
    log: Callable[[str], None] = print

    def ask(
        self,
        contents: Mapping[int, RecordDict],
        kind: str,
        take: Callable[[int, RecordDict], None],
        *,
        round: int,
        max_bytes: Callable[[int], int],
        waiting: Waiting,
        wanted: int | None = None,
    ) -> Outcome:
        """Send each client its content and `take` the answers, until `wanted` are there or it is time to end.

        `take` raises where an answer does not count: `UpdateError` where a client should not have sent it.
        """
        nodes, found = self.nodes(), Outcome()
        found.absent |= {client: "it is not connected" for client in contents if client not in nodes}
        by_node = {nodes[client]: client for client in contents if client in nodes}
        exchange = Exchange(self.grid)
        sending = {node: contents[client] for node, client in by_node.items()}
        exchange.send(sending, kind, seconds=waiting.seconds, group=str(round))
        unsent = [client for node, client in by_node.items() if node not in exchange.waiting]
        gone = "it could not be sent its task: it has just been revoked or is gone"
        found.absent |= dict.fromkeys(unsent, gone)
        bound_replies(self.grid, max(map(max_bytes, contents), default=0), seconds=waiting.seconds)
        wanted = min(wanted or len(contents), len(contents))
        patience = Patience(wanted, waiting.quorum, min_seconds=waiting.patience_seconds, max_seconds=waiting.seconds)

        def goes_on() -> bool:
            longer = patience.goes_on(len(found.answered))
            if longer and (why := patience.why(len(found.answered))):
                others = ", ".join(f"client {by_node[node]} (node {node})" for node in sorted(exchange.waiting))
                self.log(f"round {round + 1}: {why} for {others}")
            return longer

        for node, reply in exchange.replies(goes_on):
            client = by_node[node]
            if never_came(reply):
                found.late.add(client)
                continue
            try:
                take(client, _content(reply, max_bytes(client)))
                found.answered.add(client)
            except FedwidthError as error:
                found.absent[client] = printable(error)
                if isinstance(error, UpdateError):
                    found.refused.add(client)
            if len(found.answered) == wanted:
                break
        unanswered = {by_node[node] for node in exchange.waiting}
        if len(found.answered) < wanted:
            found.late |= unanswered
        else:
            enough = f"it was not waited for: {wanted} answers are enough"
            found.absent |= dict.fromkeys(unanswered, enough)
        found.absent |= self._why_late(found.late, nodes, patience.seconds)
        for client, why in found.absent.items():
            self.log(f"round {round + 1}: client {client} (node {nodes.get(client, '-')}) is left out: {why}")
        return found

    def _why_late(self, late: Collection[int], nodes: Mapping[int, int], seconds: float) -> dict[int, str]:
        """Why each of these clients has not answered, as far as the server can tell."""
        if not late:
            return {}
        connected = {node.node_id for node in self.grid.get_nodes()}
        reasons = {
            True: "it is connected, but too slow or its trainer hangs",
            False: "its connection was lost",
        }
        return {
            client: f"no answer within {seconds:.3g} s: {reasons[nodes[client] in connected]}"
            for client in sorted(late)
        }


def _content(reply: Message, max_bytes: int) -> RecordDict:
    """What a reply holds; `UpdateError` or `ClientError` where that is an error, or too much."""
    if (error := error_of(reply)) is not None:
        raise UpdateError(error) if UNREAD in error else ClientError(error)
    if (size := size_of(reply.content)) > max_bytes:
        raise UpdateError(f"its answer has {size:,} bytes, more than {max_bytes:,}")
    return reply.content
