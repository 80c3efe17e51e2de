"""FedAvg: every client trains the whole model, whatever its capacity: the benchmark under perfect conditions."""

from __future__ import annotations

from fedwidth.methods.definition import Method, everything

choose = everything

METHOD = Method(
    name="fedavg",
    title="FedAvg",
    paper="McMahan et al. 2017",
    equation="FedRolex Eq. 1",
    choose=choose,
    shared=lambda _: True,
)
