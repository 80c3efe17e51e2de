"""What a forward pass leaves behind."""

import torch
from torch import nn

from fedwidth.plan.watching.side_effects import side_effect


def test_what_is_set_once_or_stays_the_same_is_no_side_effect():
    module = nn.Linear(2, 2)
    module.nothing = float("nan")

    def step():
        module.last = torch.rand(2, generator=torch.Generator())
        module.table, module.widths = torch.zeros(3), [8]

    module.register_buffer("table", torch.ones(3))
    step()
    assert side_effect(module, step, buffers=True) is None
    assert side_effect(module, lambda: module.table.add_(1), buffers=True) == "its 'table' changes in every step"
    assert side_effect(module, lambda: module.table.add_(1)) is None
    assert side_effect(module, lambda: torch.rand(2)) == "it draws at random on the processor"


def test_what_is_counted_in_a_list_or_dictionary_is_found():
    module = nn.Linear(2, 2)
    module.stats, module.seen, module.names = {"calls": 0}, [], {"a"}

    def count():
        module.stats["calls"] += 1

    assert side_effect(module, count) == "its 'stats['calls']' changes in every step"
    assert side_effect(module, lambda: module.seen.append(None)) == "its 'len(seen)' changes in every step"
    assert side_effect(module, lambda: module.names.add("a")) is None
    assert side_effect(module, lambda: module.register_forward_hook(print)) is None, (
        "PyTorch's own are no business of it"
    )
