"""Answers are pulled towards "all classes alike", as a local rule: what recorded trials name (docs/benchmark/tried.md).

It was a control for parts that tutor the whole, and is the setting `training.smoothing` now, which goes with methods
that have a local rule, too.
"""

from __future__ import annotations

from torch import Tensor

from fedwidth.methods import fedavg
from fedwidth.methods.definition import ClientPass, Local, Method, at_least_zero
from fedwidth.training.loss import divergence_from_uniform


def loss(client: ClientPass, inputs: Tensor, targets: Tensor) -> Tensor:
    """CE(y) + weight KL(all classes alike || own)."""
    logits = client.logits(inputs)
    pulled = client.mean(divergence_from_uniform(logits), targets)
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
