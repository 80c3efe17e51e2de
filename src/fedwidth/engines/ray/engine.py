"""Ray workers, on one machine or many: each trains parcels of clients with a fast engine and answers with their sums.

The state goes into Ray's object store once a round and every worker cuts its sub-models out of it. Parcels of tasks
(see `ray_parcels`) are handed out by what their widths were measured to cost (see `ray_hands`), and their sums merged
in the order of tasks: who trained what changes nothing. If a worker is lost, its parcels are trained again by others; a
parcel counts when its answer is there, so no client counts twice.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import fedwidth
from fedwidth.core.cohort import CohortSum
from fedwidth.engines.faults import describe
from fedwidth.engines.ray.cluster import Cluster
from fedwidth.engines.ray.ledger import Ledger
from fedwidth.engines.ray.parcels import Costs, Parcel, divide
from fedwidth.engines.ray.records import About, Answer, Kit, Work, pack
from fedwidth.engines.ray.scheduling import Hand, choose
from fedwidth.engines.ray.worker import choose_inner
from fedwidth.errors import ClientError, FedwidthError, OptionError
from fedwidth.methods import Task
from fedwidth.training.client import Trainer
from fedwidth.training.rounds import Coming, Report, Watch

MAX_LOSSES = 3
"""Workers that may be lost over one parcel; by then it is likely to be what kills them (too large for memory)."""

TICK, PATIENCE = 5.0, 120.0
"""Seconds after which to look for new nodes, and without any worker after which a round fails."""


class RayEngine:
    """Trains the tasks of a round on a Ray cluster."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.inner, self.device = choose_inner(trainer)
        self.costs = Costs()
        self.choose = choose
        """Which worker gets what next; changes no result."""
        self.hands: list[Hand] = []
        self.lost = 0
        """Workers lost so far."""
        self._calls, self._manned, self._why_lost = 0, time.monotonic(), ""
        self._cluster = Cluster(trainer.settings)
        try:
            self._cluster.check_room()
            kit = Kit.of(trainer)
            self._cluster.check_store(kit.bytes)
            self._kit = self._put(kit)
            self._hire()
        except BaseException:
            self.close()
            raise

    def run(
        self,
        state: Mapping[str, Tensor],
        tasks: Sequence[Task],
        round: int,
        *,
        coming: Coming | None = None,
        watch: Watch | None = None,
    ) -> tuple[list[CohortSum], Report]:
        """Train all tasks and merge their sums in task order; `watch` is told whenever a worker has answered."""
        del coming
        tied = self.trainer.plan.tied
        shared = self._cluster.ray.put(pack({name: tensor for name, tensor in state.items() if name not in tied}))
        ledger = Ledger(tasks, divide(tasks, self.inner), next(iter(state.values())).device)
        samples = {parcel.number: self._samples(parcel, tasks) for parcel in ledger.parcels}

        def seconds(parcel: Parcel) -> float:
            return self.costs.estimate(samples[parcel.number])

        waiting = sorted(ledger.parcels, key=seconds, reverse=True)
        losses: Counter[int] = Counter()
        self._calls, self._manned = self._calls + 1, time.monotonic()
        for hand in self.hands:
            hand.held, hand.busy = {}, 0.0  # what an earlier round that failed has left
        self._hire()
        while not ledger.complete:
            for hand, parcel in self.choose(self.hands, waiting, seconds):
                own = [tasks[number] for number in parcel.tasks]
                sent = [self.trainer.cut_sent(task) for task in own] if any(task.sends for task in own) else ()
                work = Work.of(own, round, self._calls, sent)
                hand.take(hand.actor.train.remote(shared, work), parcel)
            for hand, parcel, answer in self._answers(round):
                if answer is None:
                    losses[parcel.number] += 1
                    if losses[parcel.number] == MAX_LOSSES:
                        where = describe("train", round, *(tasks[number] for number in parcel.tasks))
                        raise ClientError(
                            f"{where}: {MAX_LOSSES} Ray workers were lost (killed, or out of memory);"
                            " use fewer workers a node, with larger ray.cpus"
                        )
                    waiting.insert(0, parcel)
                    continue
                hand.busy += answer.seconds
                if hand.warm:
                    self.costs.learn(samples[parcel.number], answer.seconds)
                hand.warm = True
                ledger.enter(parcel, answer)
                if watch is not None:
                    watch(ledger.done, len(tasks))
        return ledger.sums(), ledger.report()

    def close(self) -> None:
        """End the workers, and Ray if it was started for this run."""
        for hand in self.hands:
            self._cluster.ray.kill(hand.actor)
        self.hands = []
        self._kit = None
        self._cluster.close()

    def _samples(self, parcel: Parcel, tasks: Sequence[Task]) -> dict[float, int]:
        """Training samples of a parcel by capacity."""
        training, found = self.trainer.settings.training, Counter[float]()
        for task in (tasks[number] for number in parcel.tasks):
            size = self.trainer.partition.size(task.client)
            found[task.capacity] += training.steps * training.batch_size or training.epochs * size
        return dict(found)

    def _answers(self, round: int) -> Iterator[tuple[Hand, Parcel, Answer | None]]:
        """Wait until something happens. Answers that have come; None for parcels whose worker was lost."""
        ray, owners = self._cluster.ray, self._owners()
        for ref in self._wait(list(owners), round):
            hand = owners[ref]
            if hand not in self.hands:
                continue  # lost, with all it held, a moment ago
            try:
                answer = ray.get(ref)
            except ray.exceptions.RayTaskError as error:
                raise _cause(error, hand) from error
            except ray.exceptions.RayError as error:
                if getattr(error, "actor_init_failed", False):
                    raise RuntimeError(f"a worker could not start: {error}") from None
                parcels = self._lose(hand, error)
                yield from ((hand, parcel, None) for parcel in parcels)
                continue
            if hand.about is None:
                hand.about = _checked(answer)
                continue
            yield hand, hand.give(ref), answer

    def _owners(self) -> dict[Any, Hand]:
        """Whose answer each awaited reference is."""
        owners = {ref: hand for hand in self.hands for ref in hand.held}
        return owners | {hand.ready: hand for hand in self.hands if hand.about is None}

    def _wait(self, awaited: list[Any], round: int) -> list[Any]:
        """The references that have been answered, at least one of them; none after some seconds, to look again."""
        done: list[Any] = []
        if awaited:
            done, _ = self._cluster.ray.wait(awaited, timeout=TICK)
        else:
            time.sleep(TICK)  # all workers are lost, and their nodes too
        now = time.monotonic()
        if any(hand.about for hand in self.hands):
            self._manned = now
        elif now - self._manned > PATIENCE:
            raise RuntimeError(
                f"in round {round}, the Ray cluster had no worker for {PATIENCE:.0f} s: its nodes are gone, or other"
                f" work holds their CPUs (see `ray status`){self._why_lost}"
            )
        if not done:
            self._hire()
        return done

    def _lose(self, hand: Hand, error: Exception) -> list[Parcel]:
        """Let a lost worker go and start another where there is room; the parcels it held."""
        self.hands.remove(hand)
        self._cluster.ray.kill(hand.actor)
        self._why_lost = f"; the last one was lost: {' '.join(str(error).split())}"
        if hand.about is not None:  # one that never began may have been sent to a node that is gone: others come later
            self.lost += 1
            warnings.warn(f"a Ray worker was lost ({hand.about}); others train what it held", stacklevel=2)
            self._hire()
        return list(hand.held.values())

    def _hire(self) -> None:
        """Start workers up to the number wanted now; nodes may have come or gone."""
        missing = self._cluster.wanted() - len(self.hands)
        for _ in range(missing):
            actor = self._cluster.start()
            self.hands.append(Hand(actor, actor.prepare.remote(self._kit, self.inner, self.device)))
        # Ray takes a while to see that a node is gone; a worker that was meant for it waits for a place.
        waiting = [hand for hand in self.hands if hand.about is None]
        for hand in waiting[: max(0, -missing)]:
            self.hands.remove(hand)
            self._cluster.ray.kill(hand.actor)

    def _put(self, kit: Kit) -> Any:
        try:
            return self._cluster.ray.put(kit)
        except (TypeError, AttributeError, ValueError) as error:  # what pickling fails with
            reason = str(error).strip().splitlines()[0]
            raise OptionError(f"the model cannot be sent to Ray's workers ({reason}); use engine = 'serial'") from error


def _cause(error: Any, hand: Hand) -> Exception:
    """What went wrong in a worker, as it was raised there."""
    cause: Exception = error.cause if isinstance(error.cause, Exception) else error
    if hand.about is None and not isinstance(cause, FedwidthError):
        last = str(cause).strip().splitlines()[-1]
        return OptionError(
            f"a Ray worker cannot take the model or the data ({last}); what they are made of must be installed on every"
            " node"
        )
    return cause


def _checked(about: About) -> About:
    """Refuse a worker that has other versions: its results could differ."""
    here = fedwidth.__version__, torch.__version__.split("+")[0]
    there = about.fedwidth, about.torch.split("+")[0]
    if here != there:
        raise OptionError(
            f"{about.node} has fedwidth {there[0]} and torch {there[1]}, this machine {here[0]} and {here[1]}:"
            " install the same on every node"
        )
    return about
