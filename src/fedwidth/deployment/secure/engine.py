"""The engine of secure sums: trains a round's tasks on Flower nodes, and learns of their work what sums say.

A round has two exchanges: tasks, which are answered by masked words, and the opening, on which the shares for the next
round ride. Before the first round, and where the next one's sub-models cannot be known yet or a round is repeated,
shares have an exchange of their own. Too few clients are noticed before anything is opened, and the round is repeated
(`TooFewAnswers`); a round that was opened is never opened again, whatever became of it.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedwidth.core.submodel import State
from fedwidth.deployment.asking import Asking, Waiting
from fedwidth.deployment.engine import TooFewAnswers, cut_tasks
from fedwidth.deployment.node.wire import SECURE
from fedwidth.deployment.records import task_record
from fedwidth.deployment.secure.opened_rounds import OpenedRounds
from fedwidth.deployment.secure.records import (
    max_share_bytes,
    need,
    read_masked,
    read_parts,
    secure_record,
    with_letters,
)
from fedwidth.errors import FedwidthError, SecureError
from fedwidth.methods import Task
from fedwidth.methods.lookup.secure_sums import SHELLS, segments_of
from fedwidth.secure.aggregator import Aggregator
from fedwidth.secure.facts import NUMBER, Facts
from fedwidth.secure.messages import Answer, Bundle, encode_clients, encode_invitation, encode_letters
from fedwidth.secure.rules import open_segments, threshold
from fedwidth.secure.session import Member, Session, digest_values
from fedwidth.training.client import Trainer
from fedwidth.training.engine import Engine, Report, RoundRequest, RoundResult
from fedwidth.training.server.device_noise import DeviceNoise
from fedwidth.training.server.layout import digest_plan, unit_levels
from fedwidth.training.server.secure import Opened, SecureRound

Keys = Mapping[int, tuple[bytes, bytes]]
"""By client its public key in this run, and the signature of its device."""
Sums = Mapping[int, NDArray[np.uint32]]
LOST = "the round was opened before the server stopped, and is not opened again"


@dataclass
class _Shared:
    """A round whose clients were asked to share: its tasks, and the server's side of its sums."""

    tasks: Sequence[Task]
    sums: Aggregator
    absent: dict[int, str] = field(default_factory=dict)
    """Why clients have not shared."""

    def fits(self, tasks: Sequence[Task]) -> bool:
        """Whether it was shared for these tasks."""
        parts = {task.client: task.part.key for task in self.tasks}
        return all(parts.get(task.client) == task.part.key for task in tasks)


@dataclass
class SecureEngine(Engine):
    """Trains the tasks of a round on the nodes of a grid, with secure sums."""

    grid: Grid
    trainer: Trainer
    nodes: Callable[[], Mapping[int, int]]
    """Says which nodes are connected at this moment: client -> node."""
    keys: Callable[[], Keys]
    """Says which keys devices have introduced themselves with."""
    run_name: bytes
    """A name that no other run has."""
    opened: OpenedRounds
    forget: Callable[[int], None] = lambda _: None
    """Called with a client that could not share: its trainer may have been started again, and have another key."""
    min_answers: int = 1
    training: Waiting = field(default_factory=Waiting)
    """How long a round waits for masked words."""
    opening: Waiting = field(default_factory=lambda: Waiting(seconds=60.0))
    """How long it waits for what opens it, and for shares."""
    overhead: int = 65_536
    """Most bytes of an answer beside what it must hold."""
    log: Callable[[str], None] = print
    on_round_end: Callable[[int, Collection[int], Collection[int]], None] = lambda *_: None
    """Called after each round with its number, the clients that were late and those that answered."""
    _ready: dict[int, _Shared] = field(default_factory=dict, repr=False)
    _attempts: Counter[int] = field(default_factory=Counter, repr=False)
    _told: dict[bytes, set[bytes]] = field(default_factory=dict, repr=False)
    """By a device's key the keys whose signatures it has seen."""

    def train_round(self, request: RoundRequest) -> RoundResult:
        """Have every client train, and open what the sums say."""
        round, tasks = request.round, request.tasks
        if round in self.opened:
            self.log(f"round {round + 1} is skipped: {LOST}")
            return [], self._closed(request, dict.fromkeys([task.client for task in tasks], LOST))
        shared = self._ready.pop(round, None)
        if shared is None or not shared.fits(tasks):
            shared = self._invite(request.state, tasks, round)
            self._exchange(round, None, shared)
        securely = self._secured(request.state, shared.tasks)
        absent, refused = self._train(request, securely, shared)
        alive = [task for task in tasks if task.client not in absent]
        upcoming = request.coming() if request.coming is not None else None
        coming = self._invite(request.state, *upcoming) if upcoming is not None else None
        totals = self._open(round, shared.sums, coming, _values(securely))
        if coming is not None and upcoming is not None:
            self._ready = {upcoming[1]: coming}
        firsts = {own[0] for own in securely.held.values()} & totals.keys()
        facts = Facts.decode((totals[s][-NUMBER:] for s in firsts), securely.wording.point.clients)
        known = sum(securely.held[task.client][0] in firsts for task in alive)
        sums, opened = securely.read(alive, totals, facts.clipped)
        opened = replace(opened, up=opened.up + 4 * NUMBER * len(alive))
        # Of passes and losses only sums are known: everybody is said to have had the mean.
        # Where devices add noise nothing else is said of them.
        tell = known and securely.noise is None
        passes, loss = (facts.passes // known, facts.loss / known) if tell else (0, math.nan)
        return sums, Report((passes,) * len(alive), (loss,) * len(alive), absent, refused, opened=opened)

    def close(self) -> None:
        """Nothing is to be closed: nodes stay up when a run ends."""

    def _secured(self, state: State, tasks: Sequence[Task]) -> SecureRound:
        settings, plan = self.trainer.settings, self.trainer.plan
        return SecureRound(
            state,
            plan,
            tasks,
            settings.secure,
            by_shells=segments_of(self.trainer.method) == SHELLS,
            weighting=settings.server.weighting,
            label_rows=settings.server.label_rows and bool(plan.label_axes),
            noise=DeviceNoise.of(settings),
            trained=self.trainer.trained,
        )

    def _invite(self, state: State, tasks: Sequence[Task], round: int) -> _Shared:
        """The session of another attempt at a round, for which nobody has shared yet."""
        securely, keys = self._secured(state, tasks), self.keys()
        for client in securely.held:
            if client not in keys:
                raise TooFewAnswers(f"round {round + 1} cannot begin: client {client} has no key for this run")
        members = [Member(c, keys[c][0], securely.held[c], keys[c][1]) for c in sorted(securely.held)]
        wording, firsts = securely.wording, {own[0] for own in securely.held.values()}
        lengths = {s: n + wording.beside + NUMBER * (s in firsts) for s, n in securely.changes.items()}
        session = Session(
            run=self.run_name,
            round=round,
            attempt=self._attempts[round],
            members=tuple(members),
            threshold=threshold(len(members)),
            min_clients=self.trainer.settings.secure.min_clients,
            lengths=lengths,
            plan=digest_plan(self.trainer.plan),
            fixed_point=wording.point,
            every_class=securely.every_class,
        )
        self._attempts[round] += 1
        return _Shared(tasks, Aggregator(session))

    def _train(
        self, request: RoundRequest, securely: SecureRound, shared: _Shared
    ) -> tuple[dict[int, str], frozenset[int]]:
        """Have the clients that have shared train, and add up their words; returns who is absent, and who refused."""
        round, sums, session = request.round, shared.sums, shared.sums.session
        if len(sums.sharers) < session.threshold:
            raise TooFewAnswers(_few(round, "shared", len(sums.sharers), session.threshold, shared.absent))
        tasks = {task.client: task for task in request.tasks if task.client in sums.sharers}
        _, arrays = cut_tasks(request.state, list(tasks.values()), self.trainer)
        expected = {
            client: {"token": secrets.token_hex(16), "round": round, "client": client, "attempt": session.attempt}
            for client in tasks
        }
        words = {client: sum(session.lengths[s] for s in session.held[client]) for client in tasks}
        contents = {}
        for client, task in tasks.items():
            sent = self.trainer.cut_sent(task)
            token = str(expected[client]["token"])
            contents[client] = with_letters(
                task_record(task, arrays[task.index.key], token=token, round=round, sent=sent),
                run=self.run_name,
                attempt=session.attempt,
                letters=encode_letters(sums.letters_for(client)),
                levels=unit_levels(task.index, securely.layouts.values()) if securely.by_shells else None,
            )

        def take(client: int, content: RecordDict) -> None:
            sums.add(client, read_masked(content, expected[client], words[client]))

        outcome = self._asking.ask(
            contents,
            "train",
            take,
            round=round,
            max_bytes=lambda client: 4 * words[client] + self.overhead,
            waiting=replace(self.training, quorum=max(self.training.quorum, session.threshold / len(contents))),
        )
        self.on_round_end(round, outcome.late, outcome.answered)
        absent = {task.client: shared.absent.get(task.client, "it has not shared") for task in request.tasks}
        absent = {client: why for client, why in absent.items() if client not in tasks} | outcome.absent
        if len(outcome.answered) < (needed := max(session.threshold, self.min_answers)):
            raise TooFewAnswers(_few(round, "sent their words", len(outcome.answered), needed, absent))
        sums.settle()
        return absent, frozenset(outcome.refused)

    def _open(self, round: int, sums: Aggregator, coming: _Shared | None, values: Mapping[int, bytes]) -> Sums:
        """The sums that are opened, while the clients of the next round share; none where too few answer."""
        session, alive = sums.session, sums.survivors or []
        opens = open_segments(session.held, alive, session.min_clients, every_class=session.every_class)
        if opens:
            self.opened.note(round, session.attempt, alive)
        self._exchange(round, sums if opens else None, coming)
        try:
            return sums.open(values) if opens else {}
        except SecureError as error:
            self.log(f"round {round + 1} stays closed, and is not repeated: {error}")
            return {}

    def _exchange(self, round: int, sums: Aggregator | None, coming: _Shared | None) -> None:
        """Ask those who are alive to open a round, and those of another one to share: together in one exchange."""
        alive = (sums.survivors or []) if sums is not None else []
        session = coming.sums.session if coming is not None else None
        invited = {member.client: member.key for member in session.members} if session is not None else {}
        contents = {}
        for client in sorted({*alive, *invited}):
            facts = {"client": client, "run": self.run_name.hex()}
            parts = {}
            if client in alive and sums is not None:
                facts |= {"round": round, "attempt": sums.session.attempt}
                parts["open"] = encode_clients(alive)
            if client in invited and session is not None:
                parts["share"] = encode_invitation(session, self._told.get(invited[client], ()))
            contents[client] = secure_record(facts, parts)
        if not contents:  # nothing is opened, and there is no next round
            return

        def take(client: int, content: RecordDict) -> None:
            parts, errors = read_parts(content)
            why: FedwidthError | None = None
            try:
                if client in alive and sums is not None:
                    sums.answer(client, Answer.decode(need(parts, errors, "answer", "open_error")))
            except FedwidthError as error:
                why = error
            if client in invited and coming is not None:
                coming.sums.collect(client, Bundle.decode(need(parts, errors, "bundle", "share_error")))
                self._told.setdefault(invited[client], set()).update(invited.values())
            if why is not None:
                raise why

        sessions = [each for each in (sums.session if sums is not None else None, session) if each is not None]
        needed = max((each.threshold for each in sessions), default=1)
        segments = max((len(each.lengths) for each in sessions), default=1)
        outcome = self._asking.ask(
            contents,
            f"query.{SECURE}",
            take,
            round=round,
            max_bytes=lambda _: max_share_bytes(len(contents), segments) + self.overhead,
            waiting=replace(self.opening, quorum=min(1.0, max(self.opening.quorum, needed / max(1, len(contents))))),
        )
        if coming is not None:
            for client in invited.keys() - set(coming.sums.sharers):
                coming.absent[client] = f"it has not shared: {outcome.absent.get(client, 'it answered something else')}"
                self._told.pop(invited[client], None)
                self.forget(client)

    def _closed(self, request: RoundRequest, absent: Mapping[int, str]) -> Report:
        """The report of a round that stays closed, and for which nobody was asked."""
        segments = len(self._secured(request.state, request.tasks).changes)
        return Report((), (), absent, opened=Opened(segments, segments, 1.0, 0, 0, 0))

    @property
    def _asking(self) -> Asking:
        return Asking(self.grid, self.nodes, self.log)


def _values(securely: SecureRound) -> dict[int, bytes]:
    """A digest of the values of each segment, as its holders were sent them."""
    found: dict[int, bytes] = {}
    for key, layout in reversed(securely.layouts.items()):  # the widest first: it holds all shells
        if layout.words.segments[-1] not in found:
            received = layout.words.split(layout.flatten(securely.sent[key]))
            found |= {segment: digest_values(own) for segment, own in received.items()}
    return found


def _few(round: int, have: str, number: int, needed: int, absent: Mapping[int, str]) -> str:
    """Why a round is repeated, with the first reason that a client gave."""
    first = next((f"; client {client}: {why}" for client, why in absent.items()), "")
    return f"round {round + 1}: only {number} clients have {have}, and {needed} are needed{first}"
