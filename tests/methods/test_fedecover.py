"""FedEcover: every unit is trained before any is trained twice."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

import fedwidth
from fedwidth.errors import SelectionError
from fedwidth.methods import Closing, method
from fedwidth.methods.fedecover import draw
from small_runs import same, small, whole_and_resumed

SIX = fedwidth.trace(nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 3)), torch.randn(2, 2))
(GROUP,) = SIX.groups


def closed(tasks, memory):
    """What is remembered after a round of these tasks."""
    return method("fedecover").remember(Closing({}, [], SIX, memory=memory, tasks=tasks))


def units_of(task):
    """The units a client holds."""
    return set(task.index.units[GROUP].tolist())


def test_unused_units_that_run_out_by_hand():
    # Two used already: 1 and 4. Three units for the first client leave one; the second takes it and two of the others;
    # after it all but those two are unused, so that the third gets three of these four.
    first, second, third = map(set, (own.tolist() for own in draw(bytes([0, 1, 0, 0, 1, 0]), (3, 3, 3), 0, 0, 0)))
    assert first < {0, 2, 3, 5}
    (rest,) = {0, 2, 3, 5} - first
    assert rest in second
    fresh = second - {rest}
    assert third.isdisjoint(fresh)
    assert len(first) == len(second) == len(third) == 3


def test_no_unit_is_trained_twice_before_all_are_trained_once():
    memory, seen = {}, Counter(range(6))
    for round in range(12):
        cohort = [(0, 0.5), (1, 1 / 3), (2, 5 / 6), (3, 1.0)][: 1 + round % 4]
        tasks = method("fedecover").assign(SIX, cohort, round, memory, seed=7)
        for task in tasks:
            seen.update(units_of(task))
            assert max(seen.values()) - min(seen.values()) <= 1
        memory = closed(tasks, memory)
        most = max(seen.values())
        used = {unit for unit, number in seen.items() if number == most} if len(set(seen.values())) > 1 else set()
        found = set(memory[f"used.{GROUP}"].nonzero().flatten().tolist())
        assert found in (used, used or set(range(6)))


def test_what_an_absent_client_drew_is_drawn_again():
    tasks = method("fedecover").assign(SIX, [(0, 1 / 3), (1, 1 / 3)], 0, {}, seed=3)
    memory = closed(tasks[1:], {})
    assert set(memory[f"used.{GROUP}"].nonzero().flatten().tolist()) == units_of(tasks[1])
    (coming,) = method("fedecover").assign(SIX, [(0, 2 / 3)], 1, memory, seed=3)
    assert units_of(tasks[0]) < units_of(coming)
    assert units_of(tasks[1]).isdisjoint(units_of(coming))


def test_one_client_alone_is_asked_for_as_the_first_of_equals():
    alone = method("fedecover").select(SIX, capacity=0.5, round=2, client=1, clients=2, seed=5)
    pair = method("fedecover").assign(SIX, [(0, 0.5), (1, 0.5)], 2, {}, seed=5)
    assert alone == pair[1].index
    assert units_of(pair[0]).isdisjoint(units_of(pair[1]))


def test_a_client_asked_for_with_another_capacity_draws_in_its_place():
    # The first of two draws four of six units instead of two; the second, as it is, what the first of two left.
    cohort = [(0, 1 / 3), (1, 1 / 3)]
    wide = method("fedecover").select(SIX, capacity=2 / 3, client=0, clients=2, seed=5, cohort=cohort)
    first, second = method("fedecover").assign(SIX, cohort, 0, {}, seed=5)
    assert len(wide.units[GROUP]) == 4
    assert units_of(first) < set(wide.units[GROUP].tolist())
    assert len(units_of(second)) == 2


def test_a_client_outside_the_cohort_is_refused():
    with pytest.raises(SelectionError, match="client 2 is not one of the 1 of the cohort"):
        method("fedecover").select(SIX, capacity=0.5, client=2, clients=3, cohort=[(0, 0.5)])


def test_a_memory_of_another_model_is_refused():
    with pytest.raises(SelectionError, match="another plan's"):
        method("fedecover").select(SIX, capacity=0.5, memory={f"used.{GROUP}": torch.zeros(4, dtype=torch.bool)})


def test_what_is_unused_outlasts_a_stop(tmp_path):
    settings = small("method.name=fedecover", "rounds=4")
    whole, resumed = whole_and_resumed(settings, tmp_path)
    assert same(dict(whole.server.state), dict(resumed.server.state))
    assert same(dict(whole.server.memory), dict(resumed.server.memory))
