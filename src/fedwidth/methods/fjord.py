"""FjORD: ordered dropout. A client holds the first units up to its capacity, like HeteroFL, and at every local step
trains a width drawn uniformly from those at or below its capacity, so that every prefix is a good model by itself.

Horvath et al. 2021, section 3: p ~ U over the set P of widths, restricted to p <= p_max of the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fedwidth.core.selection import prefix
from fedwidth.methods.definition import ROUNDING, ClientPass, Local, Method, Moment, Option, is_share, per_group, switch
from fedwidth.methods.shared.distillation import divergences


def units(size: int, kept: int, at: Moment) -> Tensor:
    """The client holds the first units; its local steps train the first of these."""
    del at
    return prefix(size, kept)


def local_widths(capacity: float, options: Mapping[str, Any]) -> list[float]:
    """The widths a client of this capacity draws from: those at or below it, and at least its own."""
    return [width for width in options["widths"] if width <= capacity] or [capacity]


def loss(client: ClientPass, inputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of the step's width, which is the client's own or lies inside it."""
    if client.width >= client.capacity:
        return client.loss(client.logits(inputs), targets)
    logits = client.narrower(client.width, inputs)
    loss = client.loss(logits, targets)
    if not client.options["distil"]:
        return loss
    # Section 3.3: the client's full width learns from the labels and teaches the drawn width.
    teacher = client.logits(inputs)
    lessons = divergences(logits.log_softmax(-1), teacher.detach().softmax(-1))
    return client.loss(teacher, targets) + 0.5 * loss + 0.5 * client.mean(lessons, targets)


def refuses(choice: Method) -> str | None:
    """Why a choice cannot be trained so: its sub-models must hold narrower ones, and clients must know which."""
    if "state" in choice.reads:
        return "its narrower sub-models depend on the global state, which clients do not hold"
    return None if choice.nested(choice.values) else "its narrower sub-models do not lie inside wider ones"


def _widths(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(is_share(w) and w > 0 for w in value)


METHOD = Method(
    name="fjord",
    title="FjORD",
    paper="Horvath et al. 2021",
    equation="ordered dropout, section 3",
    choose=per_group(units),
    options={
        "rounding": ROUNDING,
        "widths": Option(
            (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0),
            "a list of widths above 0 and at most 1",
            _widths,
            "widths drawn from",
        ),
        "distil": switch("the full local width teaches the drawn one"),
    },
    shared=lambda _: True,
    nested=lambda _: True,
    local=Local(
        loss=loss, steady=True, widths=local_widths, classes=lambda options: bool(options["distil"]), refuses=refuses
    ),
)
