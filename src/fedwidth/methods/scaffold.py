"""SCAFFOLD: clients correct the drift of their gradients by control variates (Karimireddy et al. 2020, Algorithm 1).

The server has a control variate c, every client its own c_i; all begin at 0. A client's step is

    y <- y - rate (g(y) - c_i + c)

and after its K steps from x the client has

    I    c_i+ = the gradient over all its data at x          (costs another pass over them)
    II   c_i+ = c_i - c + (x - y) / (K rate)

K counts the steps of all epochs. The server takes x + server_rate * (mean of y - x), and c + (sum of c_i+ - c_i) / N, N
being all clients there are. In partial training (nobody has published that) both variates have the full model's shapes,
a client holds its part of them, and what it did not train stays as it was.

Option II takes the distance x - y to be K steps of plain SGD; with momentum the distance, and so c_i, would be about
ten times as large.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedwidth.methods import fedavg
from fedwidth.methods.definition import (
    FULL_GRADIENT,
    Beginning,
    Closing,
    Local,
    LocalMoment,
    Memory,
    Method,
    Need,
    Sending,
    Sent,
    at_least_zero,
    choice,
    named,
    under,
)

CONTROL, OWN, CHANGE = "control", "own", "change"
"""Names of the server's control variate, of a client's, and of the change of a client's."""


def init(beginning: Beginning) -> dict[str, Tensor]:
    """The server's control variate before the first round: 0."""
    plan = beginning.plan
    trained = {n: t for n, t in beginning.state.items() if n in plan.parameters and n not in plan.tied}
    return named(CONTROL, {name: torch.zeros_like(tensor) for name, tensor in trained.items()})


def sends(memory: Memory, own: Memory, at: Sending) -> dict[str, dict[str, Tensor]]:
    """A client is sent the server's control variate and its own, which is 0 until the client has been drawn once."""
    del at
    control, mine = under(memory, CONTROL), under(own, OWN)
    return {CONTROL: control, OWN: {name: mine.get(name, torch.zeros_like(c)) for name, c in control.items()}}


def gradient(g: Tensor, w: Tensor, start: Tensor, sent: Sent, at: LocalMoment) -> Tensor:
    """The gradient, corrected by the difference of the control variates: g - c_i + c."""
    del w, start, at
    return g - sent[OWN] + sent[CONTROL]


def reports(w: Tensor, start: Tensor, sent: Sent, at: LocalMoment) -> Mapping[str, Tensor]:
    """The client's new control variate, which stays with it, and the change, which goes to the server."""
    if at.options["option"] == "I":
        new = sent[FULL_GRADIENT]
    else:
        new = sent[OWN] - sent[CONTROL] + (start - w) / (at.steps * at.rate)
    return {OWN: new, CHANGE: new - sent[OWN]}


def close(closing: Closing) -> dict[str, Tensor]:
    """The new global state: x + server_rate * (mean of y - x)."""
    rate, mean = closing.options["server_rate"], closing.average()
    if rate == 1:
        return mean
    trained = closing.plan.parameters
    return {n: torch.lerp(closing.state[n], new, rate) if n in trained else new for n, new in mean.items()}


def advance(closing: Closing) -> dict[str, Tensor]:
    """The server's new control variate: c + (sum of c_i+ - c_i) / N."""
    changes = closing.reported(CHANGE)
    control = under(closing.memory, CONTROL)
    return named(CONTROL, {n: c + changes[n] / closing.clients if n in changes else c for n, c in control.items()})


METHOD = Method(
    name="scaffold",
    title="SCAFFOLD",
    paper="Karimireddy et al. 2020",
    equation="Algorithm 1",
    choose=fedavg.choose,
    options={
        "option": choice("II", "I", help="how a client's control variate is renewed"),
        "server_rate": at_least_zero(1.0, "the server's step towards the mean"),
    },
    shared=lambda _: True,
    local=Local(
        gradient=gradient,
        sends=sends,
        reports=reports,
        adds=(CHANGE,),
        own=(OWN,),
        full_gradient=lambda options: options["option"] == "I",
    ),
    init=init,
    advance=advance,
    close=close,
    needs={
        "training.optimiser": Need("sgd", "its control variates are those of plain SGD"),
        "training.momentum": Need(0.0, "its control variates are those of plain SGD"),
        "training.clip": Need(0.0, "a clipped step is not the rate times the gradient"),
    },
)
