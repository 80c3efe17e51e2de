"""Parts tutor the whole: an idea for a method with a gain, not part of the package (docs/benchmark/tried.md).

Sub-models are HeteroFL's. A client that holds more than the narrowest part draws one of the narrower parts inside its
own at every step, and learns from the labels and, with a small weight, from what that part answers on its samples. The
narrow parts have learnt from all devices, weak ones included, so that what only those have seen reaches the units that
none of them holds. It costs one forward pass of the part. `method.name = "reproduction.tutor:METHOD"`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedwidth.methods.definition import ROUNDING, ClientPass, Local, Method, Option, at_least_zero, is_share, per_group
from fedwidth.methods.fjord import refuses
from fedwidth.methods.heterofl import units
from fedwidth.methods.shared.distillation import divergences


def tutors(capacity: float, options: Mapping[str, Any]) -> list[float]:
    """The widths of the parts that teach a client of this capacity; its own, which teaches nothing, if there are none.

    >>> tutors(0.25, {"widths": [1, 0.5, 0.25, 0.125, 0.0625]}), tutors(0.0625, {"widths": [0.0625, 1]})
    ([0.125, 0.0625], [0.0625])
    """
    return [width for width in options["widths"] if width < capacity] or [capacity]


def loss(client: ClientPass, inputs: Tensor, targets: Tensor) -> Tensor:
    """CE(y) + weight KL(part || own), the part's weights being those the client has at this step."""
    logits = client.logits(inputs)
    plain = client.loss(logits, targets)
    if client.width >= client.capacity:
        return plain
    with torch.no_grad():
        said = client.narrower(client.width, inputs).softmax(-1)
    taught = divergences(logits.log_softmax(-1), said)
    return plain.add(client.mean(taught, targets), alpha=client.options["weight"])


def _widths(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(is_share(each) and each > 0 for each in value)


METHOD = Method(
    name="tutor",
    title="Parts tutor the whole",
    paper="this project",
    equation="docs/benchmark/tried.md",
    choose=per_group(units),
    options={
        "rounding": ROUNDING,
        "widths": Option(
            (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16), "a list of widths above 0 and at most 1", _widths, "widths that teach"
        ),
        "weight": at_least_zero(0.1, help="weight of what the part answers"),
    },
    shared=lambda _: True,
    nested=lambda _: True,
    local=Local(loss=loss, steady=True, widths=tutors, classes=lambda _: True, refuses=refuses),
)
