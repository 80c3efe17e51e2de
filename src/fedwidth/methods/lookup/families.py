"""Families of methods: what a client holds and sends, what the server needs, and whether sums can be secret.

FedRolex' Table 1 as a living table. All but the family's name follows from what a method is.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedwidth.methods.definition import Method
from fedwidth.methods.lookup.secure_sums import SHELLS, segments_of, why_not_secure

SLICES, RULES, LOW_RANK, DISTILLATION = "partial training", "local training", "low rank", "distillation"
ADAPTERS, FROZEN = "adapters", "frozen layers"
HOLDS = {
    SLICES: "a slice of the model",
    RULES: "the whole model",
    LOW_RANK: "layers as factors",
    FROZEN: "the whole model",
    DISTILLATION: "a model of its own",
    ADAPTERS: "units of adapters",
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
    method = method.with_options()
    answers = method.local is not None and method.local.answers is not None
    if method.adapters:
        family = ADAPTERS
    elif method.public or answers:
        family = DISTILLATION
    elif method.freezes:
        family = FROZEN
    elif not method.slices:
        family = LOW_RANK
    else:
        family = SLICES if "rounding" in method.options else RULES
    whole = family == RULES or (family == DISTILLATION and method.slices)
    more = ", and more" if method.local is not None and method.local.adds else ""
    sends = method.uploads or f"what it holds{more}"
    if why_not_secure(method) is not None:
        secure = "no"
    else:
        secure = "yes" if whole or segments_of(method) == SHELLS else "by size"
    return Traits(family, HOLDS[RULES] if whole else HOLDS[family], sends, method.several, method.public, secure)
