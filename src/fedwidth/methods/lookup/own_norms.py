"""Which methods can have normalisation layers for each capacity, and why not the others."""

from __future__ import annotations

from fedwidth.methods.definition import Method


def why_not_by_capacity(method: Method) -> str | None:
    """The reason why norms of a method cannot be kept by capacity, or None where they can.

    >>> from fedwidth.methods import method
    >>> why_not_by_capacity(method("fedrolex")), why_not_by_capacity(method("fjord"))
    (None, 'its clients train several widths in turn')
    """
    local = method.local
    if not method.slices or method.adapters:
        return "its clients hold no slices of the model"
    if method.public:
        return "its server trains the whole model, and no narrow one, with data of its own"
    if local is not None and local.widths is not None:
        return "its clients train several widths in turn"
    if local is not None and (local.sends is not None or local.adds or local.own):
        return "what its clients are sent beside their sub-models is averaged over all capacities"
    return None
