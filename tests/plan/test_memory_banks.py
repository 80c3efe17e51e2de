"""Buffers into which a forward pass writes samples: their slots are no width, whatever the example's batch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedwidth.core.index import Index
from fedwidth.core.narrow import narrow
from fedwidth.plan.trace import trace

SLOTS = 40
Way = Callable[[Tensor, int, int, Tensor], None]


class Bank(nn.Module):
    """Features of earlier batches in a queue, by rows or, as MoCo has it, by columns."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self.by, self.up, self.out = by, nn.Linear(6, 16), nn.Linear(16, 3)
        self.register_buffer("queue", torch.randn(SLOTS, 16) if by == "rows" else torch.randn(16, SLOTS))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a mean over the queue, weighted by likeness."""
        h, at = self.up(x), int(self.at)
        if self.training:
            self.write(at, at + len(x), h.detach())
            self.at[0] = (at + len(x)) % (SLOTS - 10)
        bank = self.queue.T if self.by == "rows" else self.queue
        return self.out((h @ bank).softmax(1) @ bank.T)

    def write(self, first: int, last: int, new: Tensor) -> None:
        """Put samples into some slots."""
        if self.by == "rows":
            self.queue[first:last] = new
        else:
            self.queue[:, first:last] = new.T


class OtherBank(Bank):
    """A queue that is written in another way."""

    def __init__(self, by: str, way: Way) -> None:
        super().__init__(by)
        self.way = way

    def write(self, first: int, last: int, new: Tensor) -> None:
        self.way(self.queue if self.by == "rows" else self.queue.T, first, last, new)


def add(queue: Tensor, first: int, last: int, new: Tensor) -> None:
    queue[first:last] += new


def copy_into_transposed(queue: Tensor, first: int, last: int, new: Tensor) -> None:
    queue.T[:, first:last] = new.T


def copy_into_part_transposed(queue: Tensor, first: int, last: int, new: Tensor) -> None:
    queue[first:last].T.copy_(new.T)


def copy_into_data(queue: Tensor, first: int, last: int, new: Tensor) -> None:
    queue.data[first:last] = new


def copy_into_detached(queue: Tensor, first: int, last: int, new: Tensor) -> None:
    queue.detach()[first:last] = new


def copy_into_split(queue: Tensor, first: int, last: int, new: Tensor) -> None:
    queue.split([first, len(new), queue.shape[0] - last])[1].copy_(new)


def copy_as_one_row(queue: Tensor, first: int, last: int, new: Tensor) -> None:
    queue[first:last].view(-1).copy_(new.reshape(-1))


def copy_into_one_row(queue: Tensor, first: int, last: int, new: Tensor) -> None:
    size = new.shape[1]
    queue.view(-1)[first * size : last * size] = new.reshape(-1)


def move_towards(queue: Tensor, first: int, last: int, new: Tensor) -> None:
    queue[first:last].lerp_(new, 0.5)


def average(queue: Tensor, first: int, last: int, new: Tensor) -> None:
    queue[first:last].mul_(0.9).add_(new)


def multiply_into(queue: Tensor, first: int, last: int, new: Tensor) -> None:
    queue[first:last].addmm_(new, torch.eye(new.shape[1]))


def copy_by_list(queue: Tensor, first: int, last: int, new: Tensor) -> None:
    torch._foreach_copy_([queue[first:last]], [new])


WAYS = [add, copy_into_transposed, copy_into_part_transposed, copy_into_data, copy_into_detached, copy_into_split]
WAYS += [move_towards, average]


class Joined(nn.Module):
    """A buffer whose two halves are two widths, written one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 8), nn.Linear(6, 12)
        self.out = nn.Linear(20, 3)
        self.register_buffer("means", torch.zeros(20))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of both less their means."""
        one, two = self.one(x), self.two(x)
        if self.training:
            self.means[: one.shape[1]] = one.detach().mean(0)
            self.means[one.shape[1] :] = two.detach().mean(0)
        return self.out(torch.cat([one, two], 1) - self.means)


class Skipped(nn.Module):
    """A buffer of means of inputs and of a width, one behind the other: read in parts, and written as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.out = nn.Linear(6, 8), nn.Linear(14, 3)
        self.register_buffer("means", torch.zeros(14))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of both less their means."""
        h, width = self.up(x), x.shape[1]
        logits = self.out(torch.cat([x - self.means[:width], h - self.means[width:]], 1))
        if self.training:
            self.means.lerp_(torch.cat([x, h], 1).detach().mean(0), 0.1)
        return logits


class Beside(Skipped):
    """The same buffer, of which every part is written by itself."""

    def __init__(self, way: Callable[[Tensor, Tensor], object], *, split: bool) -> None:
        super().__init__()
        self.way, self.split = way, split

    def forward(self, x: Tensor) -> Tensor:
        """Logits of both less their means."""
        h, width = self.up(x), x.shape[1]
        parts = self.means.split([width, h.shape[1]]) if self.split else (self.means[:width], self.means[width:])
        logits = self.out(torch.cat([x - parts[0], h - parts[1]], 1))
        if self.training:
            self.way(parts[0], x.mean(0))
            self.way(parts[1], h.detach().mean(0))
        return logits


class Clipped(nn.Module):
    """A layer whose weights for the input are clipped in every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.mid, self.out = nn.Linear(6, 8), nn.Linear(14, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the input and a width."""
        with torch.no_grad():
            self.mid.weight[:, :6].clamp_(-1, 1)
        return self.out(self.mid(torch.cat([x, self.up(x).relu()], 1)).relu())


class Rated(Bank):
    """A queue with a learned number for every slot."""

    def __init__(self, by: str) -> None:
        super().__init__(by)
        self.rating = nn.Parameter(torch.ones(SLOTS))

    def forward(self, x: Tensor) -> Tensor:
        """Logits less a mean of the queue."""
        queue = self.queue.clone()
        mean = (queue.T if self.by == "rows" else queue) @ self.rating
        return super().forward(x) - self.out(mean)


def half(model: nn.Module, plan: Any) -> nn.Module:
    units = {name: range(group.size // 2) for name, group in plan.groups.items()}
    return narrow(model, plan, Index.of_units(plan, units))


@pytest.mark.parametrize("batch", [2, 10])
@pytest.mark.parametrize("by", ["rows", "columns"])
def test_a_queue_keeps_its_slots(by: str, batch: int) -> None:
    model, x = Bank(by), torch.randn(batch, 6)
    plan = trace(model, x)
    assert [group.size for group in plan.groups.values()] == [16]
    assert ("queue", int(by == "columns")) in [(name, dim) for name, dim, _ in plan.frozen()]
    plan.check(model, x)
    made = half(model, plan).train()
    assert sorted(made.queue.shape) == [8, SLOTS]
    for _ in range(6):
        made(torch.randn(10, 6)).sum().backward()


@pytest.mark.parametrize(
    ("by", "way"), [*product(["rows", "columns"], WAYS), ("rows", copy_as_one_row), ("rows", copy_into_one_row)]
)
def test_a_queue_keeps_its_slots_however_it_is_written(by: str, way: Way) -> None:
    model, x = OtherBank(by, way), torch.randn(4, 6)
    plan = trace(model, x)
    assert [group.size for group in plan.groups.values()] == [16]
    made = half(model, plan).train()
    for _ in range(6):
        made(torch.randn(10, 6)).sum().backward()


@pytest.mark.parametrize("way", [multiply_into, copy_by_list])
def test_a_queue_keeps_its_slots_where_an_operator_without_a_rule_writes_it(way: Way) -> None:
    model, x = nn.Sequential(nn.Linear(6, 12), nn.Linear(12, 6), OtherBank("rows", way)), torch.randn(4, 6)
    plan = trace(model, x)
    assert [group.size for group in plan.groups.values()] == [12, 6]
    made = half(model, plan).train()
    for _ in range(6):
        made(torch.randn(10, 6)).sum().backward()


def test_a_width_behind_inputs_stays_a_width_where_both_are_written_at_once() -> None:
    model, x = Skipped(), torch.randn(4, 6)
    plan = trace(model, x)
    assert [group.size for group in plan.groups.values()] == [8]
    plan.check(model, x)
    assert half(model, plan).means.shape == (10,)


def test_widths_that_are_written_by_slices_stay_widths() -> None:
    model, x = Joined(), torch.randn(4, 6)
    plan = trace(model, x)
    assert sorted(group.size for group in plan.groups.values()) == [8, 12]
    plan.check(model, x)
    assert half(model, plan).means.shape == (10,)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(
    "way",
    [
        lambda part, mean: part.copy_(mean),
        lambda part, mean: part.lerp_(mean, 0.1),
        lambda part, mean: part.mul_(0.9).add_(mean * 0.1),
    ],
    ids=["copy", "move", "average"],
)
def test_a_width_behind_inputs_stays_a_width_where_each_is_written_by_itself(way: Any, split: bool) -> None:
    model, x = Beside(way, split=split), torch.randn(4, 6)
    plan = trace(model, x)
    assert [group.size for group in plan.groups.values()] == [8]
    plan.check(model, x)
    made = half(model, plan).train()
    assert made.means.shape == (10,)
    made(x).sum().backward()


def test_weights_for_inputs_that_are_written_leave_the_others_a_width() -> None:
    model, x = Clipped(), torch.randn(4, 6)
    plan = trace(model, x)
    assert sorted(group.size for group in plan.groups.values()) == [8, 12]
    plan.check(model, x)
    half(model, plan)(x).sum().backward()


@pytest.mark.parametrize("by", ["rows", "columns"])
def test_slots_with_a_weight_of_their_own_are_no_width(by: str) -> None:
    model, x = Rated(by), torch.randn(4, 6)
    plan = trace(model, x)
    assert [group.size for group in plan.groups.values()] == [16]
    made = half(model, plan).train()
    for _ in range(6):
        made(torch.randn(10, 6)).sum().backward()
