"""Families of methods: what a client holds and sends, what the server needs, and whether sums can be secret.

FedRolex' Table 1 as a living table. All but the family's name follows from what a method is.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedwidth.methods.definition import Method

SLICES, RULES, LOW_RANK, DISTILLATION = "partial training", "local training", "low rank", "distillation"
HOLDS = {
    SLICES: "a slice of the model",
    RULES: "the whole model",
    LOW_RANK: "layers as factors",
    DISTILLATION: "a model of its own",
}
"""The families in the order in which they are listed."""


@dataclass(frozen=True)
class Traits:
    """What a reader wants to know of a method before its options."""

    family: str
    holds: str
    sends: str
    architectures: bool
    """Whether clients may hold networks that are no parts of the run's model."""
    public_data: bool
    secure_sums: str
    """Whether the server could do with sums of what clients send: for all, among clients of one size, or not."""


def traits_of(method: Method) -> Traits:
    """What a method asks of clients and server, with these options."""
    values = method.with_options().values
    shared, nested = method.shared(values), method.nested(values)
    answers = method.local is not None and method.local.answers is not None
    if method.public or answers:
        family = DISTILLATION
    elif not method.slices:
        family = LOW_RANK
    else:
        family = SLICES if "rounding" in method.options else RULES
    whole = family == RULES or (family == DISTILLATION and method.slices)
    more = ", and more" if method.local is not None and method.local.adds else ""
    sends = method.uploads or f"what it holds{more}"
    if method.collect == "updates" or not method.additive:
        secure = "no"
    elif whole or nested:
        secure = "yes"
    else:
        secure = "by size" if shared else "no"
    return Traits(family, HOLDS[RULES] if whole else HOLDS[family], sends, method.several, method.public, secure)
