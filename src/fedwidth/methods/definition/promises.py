"""What a method of one's own promises, tried out before the first round: engines rely on it, and would go wrong without
a word.

A choice is a pure function, and leaves the state that it reads as it is; `shared` and `nested` are so where a method
says so; the functions of a local rule are element-wise. The contract tests see to all of it for the package's own
methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fedwidth.core.index import Index
from fedwidth.core.submodel import State
from fedwidth.errors import FedwidthError, OptionError
from fedwidth.methods.definition.local import FULL_GRADIENT, Local, LocalMoment, Memory, Sending
from fedwidth.methods.definition.method import Method
from fedwidth.plan.plan import Plan

Rule = Callable[[Tensor, Tensor, Tensor, Mapping[str, Tensor]], Mapping[str, Tensor]]
"""A function (gradient, weights, weights at the start, what was sent) -> tensors like these, by name."""

SIZE = 64
"""Elements of the vectors that the functions of a local rule are tried on."""


@contextmanager
def tried_out(method: Method) -> Iterator[None]:
    """Say of what goes wrong within that the method was tried out: no round has begun yet, whatever the error says."""
    try:
        yield
    except FedwidthError as error:
        raise type(error)(f"{method.name} was tried out before the run: {error}") from error.__cause__


def check_promises(
    method: Method, plan: Plan, *, state: State, memory: Memory, enrolled: Sequence[float], clients: int, seed: int
) -> None:
    """Refuse a method that does not do as it says, as far as a few questions about the first round show it.

    `state` and `memory` are those a run begins with, `clients` is how many there are in all.
    """
    _check_choice(method, plan, state=state, memory=memory, enrolled=enrolled, clients=clients, seed=seed)
    if method.local is not None:
        _check_rule(method, method.local, Sending(0, 0, seed, clients, method.values), memory)


def _check_choice(
    method: Method, plan: Plan, *, state: State, memory: Memory, enrolled: Sequence[float], clients: int, seed: int
) -> None:
    """Refuse a choice that is no pure function, or other than `shared` and `nested` say."""
    widths = sorted(enrolled)
    widths = sorted({widths[0], widths[len(widths) // 2], widths[-1]})  # a run may have a capacity for every client
    cohort = [(place % clients, widths[place // 2]) for place in range(2 * len(widths))]
    read = {what: held for what, held in (("state", state), ("memory", memory)) if what in method.reads}
    lent: dict[str, Any] = {what: {name: tensor.clone() for name, tensor in read[what].items()} for what in read}

    def ask(place: int) -> Any:
        number, capacity = cohort[place]
        at: dict[str, Any] = {"capacity": capacity, "client": place, "clients": len(cohort), "number": number}
        with tried_out(method):
            return method.select(plan, seed=seed, cohort=cohort, **at, **lent)

    parts = [ask(2 * number) for number in range(len(widths))]
    for what, name in [(what, name) for what, held in read.items() for name in held]:
        if not torch.equal(read[what][name].nan_to_num(), lent[what][name].nan_to_num()):
            raise OptionError(
                f"{method.name} changes '{name}' of at.{what} while it chooses: that is the server's own; change a copy"
            )
    for number, capacity in enumerate(widths):
        if ask(2 * number).key != parts[number].key:
            raise OptionError(
                f"{method.name} chooses otherwise when it is asked the same again (capacity {capacity:g}): a choice is"
                " a pure function, and draws from at.generator() alone"
            )
        if method.shared(method.values) and ask(2 * number + 1).key != parts[number].key:
            raise OptionError(
                f"{method.name} says that all clients of one capacity hold the same (shared), but two of capacity"
                f" {capacity:g} do not: leave shared out"
            )
    for number in range(1, len(widths)) if method.nested(method.values) else ():
        if not _is_inside(parts[number - 1], parts[number]):
            raise OptionError(
                f"{method.name} says that narrower sub-models lie inside wider ones (nested), but that of capacity"
                f" {widths[number - 1]:g} holds what that of {widths[number]:g} does not: leave nested out"
            )


def _is_inside(narrow: Any, wide: Any) -> bool:
    """Whether a sub-model holds nothing that a wider one does not; of parts that are no slices that is not known."""
    if not isinstance(narrow, Index) or not isinstance(wide, Index):
        return True
    return all(
        bool(torch.isin(inner, outer).all())
        for name in narrow
        for inner, outer in zip(narrow[name], wide[name], strict=True)
    )


def _check_rule(method: Method, local: Local, at: Sending, memory: Memory) -> None:
    """Refuse functions of a local rule that are not element-wise."""
    moment = LocalMoment(method.values, 1.0, rate=0.1, steps=5)
    functions: dict[str, Rule] = {}
    if (gradient := local.gradient) is not None:
        functions["gradient"] = lambda g, w, start, sent: {"": gradient(g, w, start, sent, moment)}
    if (reports := local.reports) is not None:
        functions["reports"] = lambda _, w, start, sent: reports(w, start, sent, moment)
    for name, function in functions.items():
        if not _is_element_wise(function, lambda: {} if local.sends is None else local.sends(memory, {}, at)):
            raise OptionError(
                f"{name} of {method.name} gives a vector other values than its two halves: a local rule is element-wise"
                " and draws nothing, because engines give it one tensor, a whole model or many clients at once"
            )


def _is_element_wise(function: Rule, sends: Callable[[], Mapping[str, Any]]) -> bool:
    """Whether a function gives a vector the same values as its two halves.

    Also if it fails on these vectors: the run will say where, and for which client.
    """
    draw, sizes = torch.Generator().manual_seed(0), torch.logspace(-2, 1, SIZE)  # one half is larger than the other
    g, w, start, gathered = (torch.randn(SIZE, generator=draw) * sizes for _ in range(4))

    def ask(part: slice) -> Mapping[str, Tensor]:
        sent = {name: vectors[name][part].clone() if vectors[name].dim() else vectors[name] for name in vectors}
        return function(g[part].clone(), w[part].clone(), start[part].clone(), sent)

    try:
        vectors = {FULL_GRADIENT: gathered}
        for name, value in sends().items():
            number = isinstance(value, (int, float))
            vectors[name] = torch.tensor(float(value)) if number else torch.randn(SIZE, generator=draw) * sizes
        with torch.no_grad():
            whole, first, second = (ask(slice(*ends)) for ends in ((0, SIZE), (0, SIZE // 2), (SIZE // 2, SIZE)))
            pairs = [(whole[name], torch.cat([first[name], second[name]])) for name in whole]
            return all(torch.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True) for one, other in pairs)
    except Exception:  # anybody's functions
        return True
