"""What a choice answers, and what is said of one that fails or answers nothing: it may be anybody's function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

import numpy as np
from torch import Tensor

from fedwidth.core.index import Index
from fedwidth.errors import ClientError, FedwidthError, OptionError
from fedwidth.importing import what_failed
from fedwidth.methods.definition.choosing import Choose, Moment, only_if_read, takes_three, title_of
from fedwidth.plan.plan import Plan


def answer(choose: Choose, plan: Plan, counts: Mapping[str, int], at: Moment, reads: Sequence[str]) -> Any:
    """The part that a choice gives: an index, or one of another kind.

    `reads` is what its method says that it looks at; a choice that looked at something else is told to say so.
    """
    try:
        found = choose(plan, counts, at)
    except (ClientError, OptionError):
        raise
    except Exception as error:
        if (why := no_choice(choose, plan, counts, at)) is not None:
            raise OptionError(why) from None
        raise failed(error, at, reads) from error
    if not isinstance(found, Index) and not hasattr(found, "key"):
        why = no_choice(choose, plan, counts, at)
        what = type(found).__name__
        raise OptionError(why or f"{at.method} must choose an Index, or a part of another kind, not a {what}")
    return found


def failed(error: Exception, at: Moment, reads: Sequence[str]) -> FedwidthError:
    """What to say of an error that a choice has raised: what it should have said that it reads, or where it failed."""
    if isinstance(error, (TypeError, AttributeError)) and "'NoneType' object" in str(error) and "state" not in reads:
        return OptionError(f"{at.method} cannot choose ({error}): {only_if_read('state')}")
    where = f"round {at.round}, client {at.number}, capacity {float(at.capacity):g}, stage choose"
    if isinstance(error, FedwidthError):
        return type(error)(f"{where}: {error}")
    return ClientError(f"{where}: {what_failed(error)}")


def no_choice(choose: Choose, plan: Plan, counts: Mapping[str, int], at: Moment) -> str | None:
    """Why a function that failed, or that gave no part, is none that chooses for all groups; None where it may be one.

    A function of one group does not say that it is one: it is asked as `per_group` would, to see whether it answers.
    """
    title, called = title_of(choose), "is called with (plan, counts, at) for the whole model"
    if not takes_three(choose):
        return (
            f"{at.method} cannot choose: {title} {called}, or wrapped, choose=per_group({title}), with (size, kept, at)"
            f" for every group, but takes {signature(choose)}"
        )
    number, name = max(enumerate(plan.groups), key=lambda group: plan.groups[group[1]].size - counts[group[1]])
    one_group: Callable[..., Any] = choose
    try:
        found = one_group(plan.groups[name].size, counts[name], at.in_group(plan, name, number))
    except Exception:  # it is anybody's function, and was asked for something else
        return None
    if isinstance(found, Index) or not isinstance(found, (Tensor, np.ndarray, Sequence)):
        return None
    return (
        f"{at.method} cannot choose: {title} {called}, but chooses for one group, (size, kept, at): wrap it,"
        f" choose=per_group({title})"
    )
