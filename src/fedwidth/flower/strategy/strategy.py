"""A Flower Strategy that sends every node a sub-model of the width it can afford, and averages what overlaps.

It takes the place of FedAvg in an app, and uses nothing of Flower but what Flower documents. What a round does stands
where it always stands: the method chooses (`Rounds.assign`), the updates are compared with each other
(`Rounds.compare`), the method closes the round and the server takes its step (`Rounds.close`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch import nn

from fedwidth.config.schema import build
from fedwidth.core.cohort import CohortSum
from fedwidth.core.submodel import state_of, with_ties
from fedwidth.engines.serial import add_update
from fedwidth.errors import ClientError, OptionError, UpdateError
from fedwidth.evaluation.representative import LastRound, representative_index
from fedwidth.flower.strategy.nodes import Node, Nodes, draw
from fedwidth.flower.strategy.open_round import OpenRound, State, array_of
from fedwidth.flower.strategy.replies import LABELS, STEPS, Reading, read_reply
from fedwidth.flower.strategy.support import why_not
from fedwidth.methods import Beginning, Method, Reference, Task
from fedwidth.methods import method as method_named
from fedwidth.plan import trace
from fedwidth.printable import printable
from fedwidth.settings import ServerSettings
from fedwidth.training.engine import Report
from fedwidth.training.rounds import Rounds
from fedwidth.training.server.state import Server

if TYPE_CHECKING:
    from flwr.serverapp.strategy import Result

    from fedwidth.data import Data

LOG = logging.getLogger("flwr")


class Strategy(FedAvg):
    """Federated learning in which every node trains the width it can afford.

    Args:
        model: The app's own model at full width; its weights are not used where `start` is given others.
        example: Inputs that the model takes, as of `fedwidth.trace`.
        method: A method by name, or one made by `fedwidth.method`. Every method works that needs no memory of clients
            and does not choose by what training takes of a device's memory.
        options: The options of a method that is given by name.
        server: Settings of the server by name, as in `[server]` of a recipe: `{"optimiser": "fedadam", "lr": 0.03}`.
            Clients weigh what their `num-examples` say, unless `weighting` says otherwise.
        seed: Which nodes and units are drawn follows from it.
        capacities: The capacities that nodes may have; None: any where sub-models are slices, else those of the first
            round.
        public: Data of the server's own, for methods that close a round with it.
        norm_bound: An update that changes by more than so many times its own norm is dropped.
        max_samples: A client that claims more samples is dropped.
        introduction_seconds: How long to wait for new nodes to say what they can afford.
        flower: What Flower's FedAvg takes: `fraction_train`, `min_available_nodes`, and so on.
    """

    def __init__(
        self,
        model: nn.Module,
        example: Any,
        method: str | Method = "fedrolex",
        *,
        options: Mapping[str, Any] | None = None,
        server: Mapping[str, Any] | None = None,
        seed: int = 1,
        capacities: Sequence[float] | None = None,
        public: Data | None = None,
        norm_bound: float = 10.0,
        max_samples: int = 1_000_000,
        introduction_seconds: float = 60.0,
        **flower: Any,
    ) -> None:
        super().__init__(**flower)
        chosen = method_named(method, **dict(options or {})) if isinstance(method, str) else method
        if (reason := why_not(chosen, public)) is not None:
            raise OptionError(reason)
        settings = build(ServerSettings, {"weighting": "samples", **(server or {})}, "server.")
        if settings.norms != "shared":
            raise OptionError("server norms must be shared in a Flower app: nodes of all widths train at the same time")
        self.method, self.plan = chosen, trace(model, example)
        self.absent: dict[int, dict[int, str]] = {}
        """By round, counted from 1, and client: why its work did not count."""
        self.nodes = Nodes(introduction_seconds, LOG.info)
        self._model, self._own = model, state_of(model)
        self._needed = frozenset(model.state_dict(keep_vars=True)) - set(self.plan.tied)
        self._reading = Reading(settings.weighting, settings.label_rows, self.weighted_by_key, norm_bound, max_samples)
        self._rounds = Rounds(chosen, self.plan, settings, seed, model=model, example=example, public=public)
        self._capacities = None if capacities is None else tuple(capacities)
        self._reference = Reference.of(chosen)
        self._server: Server | None = None
        self._names: list[str] = []
        self._open = OpenRound()
        self._last: LastRound | None = None

    def start(self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, *more: Any, **named: Any) -> Result:
        """Run so many rounds, as every Strategy of Flower does; what follows is said to methods that ask for it."""
        self._rounds = replace(self._rounds, number=num_rounds)
        return super().start(grid, initial_arrays, num_rounds, *more, **named)

    def summary(self) -> None:
        """Log what the strategy does."""
        LOG.info("\t├──> fedwidth: %s, %d width groups", self.method.title, len(self.plan.groups))
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Cut a sub-model for each of the round's nodes."""
        if self.fraction_train == 0.0:
            return []
        found = self._present(grid, self.min_train_nodes)
        server = self._server = replace(self._begin(arrays, found.values()), round=server_round - 1)
        out = {client for client in found if server.quarantine.why_out(client, server.round)}
        left = {client: node for client, node in found.items() if client not in out} or found
        number = max(int(len(found) * self.fraction_train), self.min_train_nodes)
        drawn = draw(left, number, round=server.round, seed=self._rounds.seed)
        cohort = [(node.client, node.capacity) for node in drawn]
        tasks = self._rounds.assign(server, cohort)
        LOG.info("configure_train: %d of %d nodes train", len(drawn), len(found))
        self._open = OpenRound(tasks, cohort, {node.id: task for node, task in zip(drawn, tasks, strict=True)})
        for task in tasks:
            if task.part.key not in self._open.sent:
                self._open.sent[task.part.key] = task.part.cut(server.state, self.plan)
        config["server-round"] = server_round
        return self._messages(self._open, config, MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average what has come; a reply that cannot count is dropped and named."""
        server, opened = self._server, self._open
        if server is None or not opened.tasks:
            return None, None
        absent = {task.client: "no reply" for task in opened.tasks}
        refused, read = set[int](), {}
        for reply in replies:
            if (task := opened.by_node.get(reply.metadata.src_node_id)) is None:
                continue
            try:
                if reply.has_error():
                    raise ClientError(f"it failed: {reply.error.reason}")
                sent = opened.sent[task.part.key]
                needed = self._needed if self.method.slices else frozenset(sent) - set(self.plan.tied)
                read[task.client] = read_reply(reply.content, task, sent, needed, self._reading)
                del absent[task.client]
            except (UpdateError, ClientError) as error:
                absent[task.client] = printable(error)
                if isinstance(error, UpdateError):
                    refused.add(task.client)
        tasks, sums, report = self._compared(server, opened.tasks, read, absent, frozenset(refused))
        for client, why in report.absent.items():
            LOG.warning("round %d: client %d is left out: %s", server_round, client, why)
        self.absent[server_round] = dict(report.absent)
        self._last = LastRound(server.round, opened.cohort, self._rounds.seed, server.memory, server.state)
        self._open = OpenRound()
        if not tasks:
            self._server = server.skip()
            return None, None
        self._server = self._rounds.close(server, tasks, sums, report)
        return self._arrays(self._server.state), self._mean([read[task.client][1] for task in tasks])

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Send each of the round's nodes the model that stands for its width."""
        if self.fraction_evaluate == 0.0:
            return []
        found = self._present(grid, self.min_evaluate_nodes)
        server = self._server = self._begin(arrays, found.values())
        number = max(int(len(found) * self.fraction_evaluate), self.min_evaluate_nodes)
        drawn = draw(found, number, round=server_round - 1, seed=self._rounds.seed + 1)
        last = self._last or LastRound(0, [(n.client, n.capacity) for n in drawn], self._rounds.seed, server.memory)
        if not self.method.slices:  # models of a width are part of the memory, and those of this round are wanted
            last = replace(last, memory=server.memory)
        last = replace(last, state=server.state)
        opened: dict[int, Task] = {}
        cuts: dict[str, State] = {}
        for place, node in enumerate(drawn):
            part = representative_index(self.method, self.plan, node.capacity, last)
            opened[node.id] = Task(node.client, 1.0 if part.is_whole else node.capacity, part, place)
            if part.key not in cuts:
                cuts[part.key] = part.cut(server.state, self.plan)
        self._evaluated = {node.id: node.capacity for node in drawn}
        config["server-round"] = server_round
        cohort = [(node.client, node.capacity) for node in drawn]
        return self._messages(OpenRound(list(opened.values()), cohort, opened, cuts), config, MessageType.EVALUATE)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The weighted mean of what nodes measured, and of those of each width by itself (`accuracy-at-0.25`)."""
        by_capacity: dict[float, list[MetricRecord]] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            records = [] if reply.has_error() else list(reply.content.metric_records.values())
            why = reply.error.reason if reply.has_error() else f"it sent {len(records)} MetricRecords, not one"
            weight = records[0].get(self.weighted_by_key) if len(records) == 1 else None
            if records and not (isinstance(weight, (int, float)) and 0 < weight <= self._reading.max_samples):
                records, why = [], f"its {self.weighted_by_key} is {weight!r}"
            if len(records) != 1 or node not in self._evaluated:
                LOG.warning("round %d: node %d is not evaluated: %s", server_round, node, printable(why))
                continue
            by_capacity.setdefault(self._evaluated[node], []).append(records[0])
        everyone = self._mean([r for records in by_capacity.values() for r in records], evaluate=True)
        if everyone is None:
            return None
        for capacity in sorted(by_capacity):
            own = self._mean(by_capacity[capacity], evaluate=True) or {}
            for name, value in own.items():
                everyone[f"{name}-at-{capacity:g}"] = value
        return everyone

    def _present(self, grid: Grid, least: int) -> dict[int, Node]:
        """The nodes that are there, by client, with a capacity that can be trained."""
        found = self.nodes.wait(grid, max(self.min_available_nodes, least))
        if not found:
            why = next(iter(self.nodes.silent.values()), "there is none")
            raise ClientError(f"no node has said what it can afford: {why}; every ClientApp needs introduce(app)")
        if self._capacities is not None:
            for client, node in list(found.items()):
                if node.capacity not in self._capacities:
                    allowed = ", ".join(f"{capacity:g}" for capacity in self._capacities)
                    LOG.warning(
                        "client %d is left out: its capacity is %g, not one of %s", client, node.capacity, allowed
                    )
                    del found[client]
        return found

    def _begin(self, arrays: ArrayRecord, nodes: Iterable[Node]) -> Server:
        """The server with these arrays as its state; the method's first state and memory where it is the first time."""
        given = {name: torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()}
        if self._server is not None:
            return replace(self._server, state=with_ties({**self._server.state, **given}, self.plan))
        self._names = list(given)
        own, slices = tuple(sorted({node.capacity for node in nodes})), self.method.slices
        enrolled = self._capacities or own
        if not slices:
            self._capacities = enrolled
        self.method = replace(self.method, enrolled=tuple(enrolled))
        self._rounds = replace(self._rounds, method=self.method, enrolled=enrolled)
        state = with_ties({**self._own, **given}, self.plan)
        self.plan.check_state(state)
        beginning = Beginning(
            state,
            self.plan,
            enrolled,
            self._rounds.seed,
            self.method.values,
            model=self._model,
            example=self._rounds.example,
            answer=self._rounds.objective.answer,
        )
        first = self.method.first_state(beginning)
        return Server(first, memory=self.method.first_memory(replace(beginning, state=first)))

    def _messages(self, opened: OpenRound, config: ConfigRecord, kind: str) -> list[Message]:
        return opened.messages(
            kind,
            config,
            reference=self._reference,
            seed=self._rounds.seed,
            enrolled=tuple(self._rounds.enrolled),
            tied=self.plan.tied,
            keys=(self.arrayrecord_key, self.configrecord_key),
        )

    def _compared(
        self,
        server: Server,
        tasks: Sequence[Task],
        read: Mapping[int, tuple[Any, MetricRecord]],
        absent: Mapping[int, str],
        refused: frozenset[int],
    ) -> tuple[list[Task], Sequence[CohortSum], Report]:
        """The tasks that count and their sums, added in the order of the tasks, clipped and screened as asked for."""
        sums: dict[str, CohortSum] = {}
        came = [task for task in tasks if task.client in read]
        for task in came:
            add_update(sums, task, read[task.client][0], copy=False)
        report = Report((0,) * len(came), (0.0,) * len(came), absent, refused)
        return self._rounds.compare(server, came, list(sums.values()), report) if came else ([], [], report)

    def _mean(self, records: Sequence[MetricRecord], *, evaluate: bool = False) -> MetricRecord | None:
        """The metrics that all of them have, averaged by Flower's function or the app's own."""
        if not records:
            return None
        common = set.intersection(*(set(record) for record in records)) - {LABELS, STEPS}
        contents = [RecordDict({"metrics": MetricRecord({n: r[n] for n in r if n in common})}) for r in records]
        aggregate: Callable[[list[RecordDict], str], MetricRecord] = (
            self.evaluate_metrics_aggr_fn if evaluate else self.train_metrics_aggr_fn
        )
        return aggregate(contents, self.weighted_by_key)

    def _arrays(self, state: State) -> ArrayRecord:
        return ArrayRecord({name: array_of(state[name]) for name in self._names})
