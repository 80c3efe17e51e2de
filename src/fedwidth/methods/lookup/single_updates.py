"""Which methods can do with private sums, and which with robust ones, and why not the others."""

from __future__ import annotations

from fedwidth.methods.definition import Method


def why_not_robust(method: Method) -> str | None:
    """The reason why a method's updates cannot be averaged robustly, or None where they can.

    >>> from fedwidth.methods import method
    >>> why_not_robust(method("fedcover")), why_not_robust(method("fedbrb"))
    (None, 'its server closes a round otherwise than by averaging')
    """
    if not method.slices or not method.additive:
        return "its clients hold no slices of the model"
    if method.local is not None and (method.local.adds or method.local.own):
        return "its clients report more than their sub-models"
    if method.close is not None:
        return "its server closes a round otherwise than by averaging"
    return None


def why_not_private(method: Method) -> str | None:
    """The reason why a method's rounds cannot be private, or None where they can.

    >>> from fedwidth.methods import method
    >>> why_not_private(method("fedrolex")), why_not_private(method("fedcover"))
    (None, 'what a client holds depends on who else takes part')
    """
    if (reason := why_not_robust(method)) is not None:
        return reason
    if method.advance is not None or set(method.reads) - {"state"}:
        return "its server remembers of clients what no noise hides"
    # Then the sum of the others would change too where one is left out: by more than what that one may count.
    return None if method.shared(method.values) else "what a client holds depends on who else takes part"
