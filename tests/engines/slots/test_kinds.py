"""Which steps of a slot are captured."""

import pytest
import torch

from fedwidth.core.index import Index
from fedwidth.engines.flat.parts import PartLayout
from fedwidth.engines.slots.making import make_slot
from fedwidth.engines.slots.slot import FIRST_GRAPHS, MAX_GRAPHS, Slot
from fedwidth.experiment import Experiment
from small_runs import small


@pytest.fixture
def slot() -> Slot:
    trainer = Experiment(small()).trainer
    whole = Index.whole(trainer.plan)
    return make_slot(trainer, whole, PartLayout(whole, trainer, lambda _: False), 1.0)


def kinds_of(slot, sizes, *rows):
    """The kinds of steps on batches of these sizes, with rows of what clients were given."""
    batches = [
        (torch.zeros(n, 64), {"targets": torch.zeros(n), **{r: torch.zeros(n, 10) for r in rows}}) for n in sizes
    ]
    return slot.kinds(batches)


def test_batches_without_rows_leave_room_for_those_with_them(slot):
    """In FedGKT's first round no client has logits yet: steps of all later ones are to be captured too."""
    for rows in ((), ("logits",)):
        found = kinds_of(slot, range(1, FIRST_GRAPHS + 2), *rows)
        for kind in found[:FIRST_GRAPHS]:
            assert slot._is_to_be_captured(kind)
            slot.graphs[kind] = None
        assert not any(map(slot._is_to_be_captured, found))


def test_sizes_behind_the_first_are_captured_when_they_come_again_as_far_as_there_is_room(slot):
    """Clients with unequally many samples have last batches of many sizes, which come again and again."""
    found = kinds_of(slot, range(1, MAX_GRAPHS + 2))
    for kind in found[:FIRST_GRAPHS]:
        slot.graphs[kind] = None
    for kind in found[FIRST_GRAPHS:MAX_GRAPHS]:
        assert not slot._is_to_be_captured(kind)
        slot.met.add(kind)
        assert slot._is_to_be_captured(kind)
        slot.graphs[kind] = None
    slot.met.add(found[-1])
    assert not slot._is_to_be_captured(found[-1])
