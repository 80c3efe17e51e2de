"""Answers are pulled towards "all classes alike": a control for parts that tutor the whole, not part of the package
(docs/benchmark/tried.md).

A client learns from the labels and, with a weight, that all classes are equally likely, also those that it lacks and
whose logits the plain loss masks. No device teaches another: what it gains is no method's for weak devices. It goes
with any method: `local.name = "reproduction.smoothing:METHOD"`. Were nothing masked it would be label smoothing
(Szegedy et al. 2016) with a share of weight / (1 + weight), and 1 + weight times the loss.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedwidth.methods import fedavg
from fedwidth.methods.definition import ClientPass, Local, Method, at_least_zero
from fedwidth.methods.shared.distillation import divergences


def loss(client: ClientPass, inputs: Tensor, targets: Tensor) -> Tensor:
    """CE(y) + weight KL(all classes alike || own)."""
    logits = client.logits(inputs)
    alike = torch.full_like(logits, 1 / logits.shape[-1])
    pulled = client.mean(divergences(logits.log_softmax(-1), alike), targets)
    return client.loss(logits, targets).add(pulled, alpha=client.options["weight"])


METHOD = Method(
    name="smoothing",
    title="Answers pulled together",
    paper="Szegedy et al. 2016",
    equation="docs/benchmark/tried.md",
    choose=fedavg.choose,
    options={"weight": at_least_zero(0.3, help="weight of all classes alike")},
    shared=lambda _: True,
    local=Local(loss=loss, steady=True, classes=lambda _: True),
)
