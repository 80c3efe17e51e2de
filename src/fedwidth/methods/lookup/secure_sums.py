"""Which methods can do with secure sums, and how their sub-models are cut into segments for them."""

from __future__ import annotations

from fedwidth.errors import OptionError
from fedwidth.methods.definition import Method

SHELLS, COHORTS = "shells", "cohorts"


def segments_of(method: Method) -> str:
    """How a method's sub-models are added up: in shells where they lie inside each other, else by cohorts.

    Methods that need more than sums, or whose clients hold something else each, are refused with the reason.

    >>> from fedwidth.methods import method
    >>> segments_of(method("fedrolex")), segments_of(method("fedrolex", overlap=0.5)), segments_of(method("fedbrb"))
    ('shells', 'cohorts', 'cohorts')
    """
    if (reason := why_not_secure(method)) is not None:
        raise OptionError(f"{method.title} has no secure sums: {reason}")
    averages = method.close is None and method.advance is None
    return SHELLS if averages and method.nested(method.values) else COHORTS


def why_not_secure(method: Method) -> str | None:
    """Why a method cannot do with secure sums, or None where it can."""
    if method.collect == "updates" or method.public:
        return "its server needs the updates of single clients"
    if method.uploads:
        return "its clients send something else than what they hold"
    if not method.slices or not method.additive:
        return "its clients hold no slices of the model"
    if method.local is not None and (method.local.adds or method.local.own):
        return "its clients report more than their sub-models"
    if method.nested(method.values) or method.shared(method.values):
        return None
    hint = '; method.options.draw = "round" makes them' if "draw" in method.options else ""
    return f"its sub-models of a round neither lie inside each other nor are those of one width the same{hint}"
