"""What a task costs its device: bytes, multiply-adds, seconds; and whether a simulated device does it in time."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from torch import Tensor

from fedwidth.adapters.averages import MOVE_FROZEN
from fedwidth.core.cost import Cost
from fedwidth.core.part import Part
from fedwidth.devices.time import FAILED, LATE, Speeds, fails
from fedwidth.errors import OptionError
from fedwidth.methods import Task
from fedwidth.training.batches import count_passes
from fedwidth.training.client import Trainer
from fedwidth.training.rounds import Rounds
from fedwidth.training.server.state import Server

NUMBER_BYTES = 8
"""What a number that is sent beside a sub-model takes."""


NOTHING_ANSWERED: Mapping[int, tuple[int, int]] = {}


class TaskCosts:
    """The costs of a run's tasks, by the rates and bandwidths of simulated devices where the settings give them."""

    def __init__(self, trainer: Trainer, first_state: Mapping[str, Tensor], speeds: Speeds | None) -> None:
        self.trainer, self.speeds = trainer, speeds
        self.memory_travels = False
        """Whether what clients remember is sent to them and back: where the server keeps it for real devices."""
        self.frozen_travels = False
        """Whether frozen weights are sent back: real devices return whole sub-models."""
        self.known: dict[Hashable, Cost] = {}
        """The costs of sub-models by size; runs of one model may share them."""
        self._first_state = first_state

    def of(self, task: Task) -> Cost:
        """What the task's sub-model costs."""
        return self.of_part(task.part, task.capacity)

    def of_part(self, part: Part, capacity: float) -> Cost:
        """What a part costs a device of this capacity."""
        trainer, size = self.trainer, part.size
        if size not in self.known:
            example = trainer.data.example()
            self.known[size] = part.cost(trainer.model, trainer.plan, example, capacity=capacity)
        return self.known[size]

    def macs(self, task: Task, passes: int) -> int:
        """Multiply-adds of training with so many samples, each counted as often as it is seen."""
        return int(self.of(task).step_macs) * passes

    def macs_of_answers(self, task: Task, samples: int) -> int:
        """Multiply-adds of answering for so many samples, without a gradient."""
        return int(self.of(task).macs) * samples

    def traffic(
        self,
        tasks: Sequence[Task],
        answered: Mapping[int, tuple[int, int]] = NOTHING_ANSWERED,
        *,
        round: int = 0,
    ) -> tuple[int, int]:
        """Bytes that clients are sent, and that they send back: their sub-models, and what goes beside them.

        What is frozen was sent before the first round. Where a rule lets parameters rest in this round, they are not
        sent back; those that rest in every round are not sent at all.

        Where models stay with clients, one is sent to a client that has none yet, and `answered` says by client for how
        many samples, and in how many bytes, it answered instead of sending it back.
        """
        down = up = 0
        for task in tasks:
            cost = self.of(task)
            if self._stays:
                size = int(cost.bytes + cost.buffer_bytes)
                down, up = down + size * task.part.is_new, up + answered.get(task.client, (0, 0))[1]
            else:
                resting, always = self._resting(task, round)
                down, up = down + int(cost.bytes_down) - always, up + int(cost.bytes_up) - resting
                if self.frozen_travels:  # and comes back as it went
                    down, up = down + int(cost.frozen_bytes - cost.resent_bytes), up + int(cost.frozen_bytes)
        down += self._products(tasks)
        sent, reported = self._beside(tasks)
        return down + sent, up + reported

    def seconds(self, task: Task) -> float:
        """How long the task would take its device: being sent, training, reporting; 0 where that is not simulated."""
        if self.speeds is None:
            return 0.0
        samples = len(self.trainer.partition[task.client])
        passes = count_passes(samples, self.trainer.settings.training) + (samples if self.trainer.rule.probes else 0)
        sent = sum(self.traffic([replace(task, sends=self._example_sends)]))
        return self.speeds.seconds(task.capacity, macs=self.macs(task, passes), sent=sent)

    def attends(self, task: Task, round: int) -> bool:
        """Whether the simulated device of a task neither fails in this round nor comes after the deadline."""
        deadline = self.trainer.settings.devices.deadline
        return not self._fails(task.client, round) and (not deadline or self.seconds(task) <= deadline)

    def why_left_out(self, drawn: Sequence[int], known: Collection[int], round: int) -> dict[int, str]:
        """The clients of a cohort that were left out of the round before it began, and why."""
        left = [client for client in drawn if client not in known]
        return {client: FAILED if self._fails(client, round) else LATE for client in left}

    def check_deadline(self, rounds: Rounds, server: Server) -> None:
        """Refuse a deadline that nobody can keep, not even with the fewest samples there are."""
        deadline = self.trainer.settings.devices.deadline
        client = int(self.trainer.partition.sizes.argmin())
        tasks = rounds.assign(server, [(client, capacity) for capacity in rounds.enrolled])
        fastest = min(self.seconds(task) for task in tasks)
        if fastest > deadline:
            raise OptionError(f"devices.deadline is {deadline:g} s, but the fastest client needs {fastest:.3g} s")

    def _fails(self, client: int, round: int) -> bool:
        settings = self.trainer.settings
        return fails(settings.devices, client, round=round, seed=settings.seed)

    def _resting(self, task: Task, round: int) -> tuple[int, int]:
        """Bytes of the task's parameters that rest in this round, and of those that rest in the next one too."""
        rests = self.trainer.rule.local.rests
        if rests is None:
            return 0, 0
        now, then = (rests(self.trainer.plan, each) for each in (round, round + 1))
        sizes = {name: math.prod(task.index.shapes[name]) * self._first_state[name].element_size() for name in now}
        return sum(sizes.values()), sum(size for name, size in sizes.items() if name in then)

    def _products(self, tasks: Sequence[Task]) -> int:
        """Bytes of what is added to frozen weights when the round ends, as far as its own clients are sent it: the
        factors that all of them trained, or the weights where those are smaller."""
        trainer = self.trainer
        moves = trainer.settings.adapter.average in MOVE_FROZEN or trainer.method.moves_frozen
        if not trainer.plan.adapters or not moves:
            return 0
        stack = sum(int(self.of(task).trained_bytes) for task in tasks)
        names = {adapter.weight for adapter in trainer.plan.adapters}
        weights = sum(self._first_state[name].numel() * self._first_state[name].element_size() for name in names)
        return len(tasks) * min(stack, weights)

    def _beside(self, tasks: Sequence[Task]) -> tuple[int, int]:
        """Bytes that clients are sent, and report, beside their sub-models."""
        local = self.trainer.method.local
        if local is None:
            return 0, 0
        sent = reported = 0
        for task in tasks:
            for name, value in task.sends.items():
                if name in local.own and not self.memory_travels:
                    continue
                if isinstance(value, Mapping):
                    shapes = task.index.shapes
                    own = {tensor: full for tensor, full in value.items() if tensor not in self.trainer.plan.untrained}
                    sent += sum(math.prod(shapes[tensor]) * full.element_size() for tensor, full in own.items())
                else:
                    sent += NUMBER_BYTES
            sent += sum(tensor.numel() * tensor.element_size() for tensor in task.given.values())
            reports = len(local.adds) + (len(local.own) if self.memory_travels else 0)
            reported += reports * int(self.of(task).trained_bytes)
        return sent, reported

    @cached_property
    def _stays(self) -> bool:
        """Whether models stay with clients, which send answers instead."""
        local = self.trainer.method.local
        return local is not None and local.answers is not None

    @cached_property
    def _example_sends(self) -> Mapping[str, Any]:
        """What clients are sent beside sub-models, as large as in every round."""
        return self.trainer.example_sends(self._first_state)
