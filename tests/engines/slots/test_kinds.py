"""Which steps of a slot are captured."""

import torch

from fedwidth.core.index import Index
from fedwidth.engines.flat.parts import PartLayout
from fedwidth.engines.slots.making import make_slot
from fedwidth.engines.slots.slot import MAX_GRAPHS
from fedwidth.experiment import Experiment
from small_runs import small


def test_batches_without_rows_leave_room_for_those_with_them():
    """In FedGKT's first round no client has logits yet: steps of all later ones are to be captured too."""
    trainer = Experiment(small()).trainer
    whole = Index.whole(trainer.plan)
    slot = make_slot(trainer, whole, PartLayout(whole, trainer, lambda _: False), 1.0)

    def kinds(*rows):
        batches = [
            (torch.zeros(n, 64), {"targets": torch.zeros(n), **{r: torch.zeros(n, 10) for r in rows}})
            for n in range(1, MAX_GRAPHS + 2)
        ]
        return slot.kinds(batches)

    for rows in ((), ("logits",)):
        found = kinds(*rows)
        for kind in found[:MAX_GRAPHS]:
            assert slot._is_to_be_captured(kind)
            slot.graphs[kind] = None
        assert not any(map(slot._is_to_be_captured, found))
