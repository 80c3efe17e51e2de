"""FedProx: FedAvg whose clients stay near the model they were sent (Li et al. 2020).

A client minimises F(w) + mu/2 ||w - w_t||^2, w_t being its sub-model as it came: every gradient gains mu (w - w_t).
Nothing is kept between rounds. With mu = 0 it is FedAvg, bit for bit. Only what is trained is held back: buffers and
frozen parameters are not.
"""

from __future__ import annotations

from torch import Tensor

from fedwidth.methods import fedavg
from fedwidth.methods.definition import Local, LocalMoment, Method, Sent, at_least_zero


def gradient(g: Tensor, w: Tensor, start: Tensor, sent: Sent, at: LocalMoment) -> Tensor:
    """The gradient of the loss and of mu/2 ||w - start||^2."""
    del sent
    return g.add(w - start, alpha=at.options["mu"])


METHOD = Method(
    name="fedprox",
    title="FedProx",
    paper="Li et al. 2020",
    equation="Eq. 2",
    choose=fedavg.choose,
    options={"mu": at_least_zero(0.01, "how strongly clients are held to what was sent")},
    shared=lambda _: True,
    local=Local(gradient=gradient),
)
