"""FedIT: federated LoRA as it began. Every client trains all ranks, and the server averages A and B apart.

    A = sum of p_k A_k,   B = sum of p_k B_k        (Zhang et al. 2024)

The product of means is not the mean of products: they differ by sum of p_k (B_k - B) (A_k - A), a covariance that grows
as clients drift apart. `adapters.error` of the metrics has its size.
"""

from __future__ import annotations

from fedwidth.methods.definition import Method
from fedwidth.methods.fedavg import choose

METHOD = Method(
    name="fedit",
    title="FedIT",
    paper="Zhang et al. 2024",
    equation="mean of factors",
    choose=choose,
    shared=lambda _: True,
    nested=lambda _: True,
    adapters="holders",
)
