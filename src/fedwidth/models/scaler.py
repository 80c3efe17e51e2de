"""HeteroFL's scaler: keeps the activations of a narrow model on the scale of the full one.

A unit of a narrow layer sums fewer inputs, so its output is smaller by about the client's rate. Dividing by the rate
in local training makes the narrow model's activations resemble those of the global model they are averaged into. The
global model itself is evaluated as it is.
"""

from __future__ import annotations

from torch import Tensor, nn

from fedwidth.errors import CapacityError
from fedwidth.models.static_norm import StaticBatchNorm2d


class Scaler(nn.Module):
    """Divides by `rate` in training; passes its input through in evaluation and at rate 1."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Scale one activation."""
        # At rate 1 nothing is computed, so a full-width client stays bit-identical to FedAvg.
        return x / self.rate if self.training and self.rate != 1.0 else x

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        return f"rate={self.rate:g}"


def set_scaler(model: nn.Module, rate: float) -> None:
    """Tell every `Scaler` and `StaticBatchNorm2d` of a narrow model the share of the full width its client trains.

    >>> layer = nn.Sequential(nn.Linear(4, 2), Scaler())
    >>> set_scaler(layer, 0.5)
    >>> layer[1]
    Scaler(rate=0.5)
    """
    if not 0 < rate <= 1:
        raise CapacityError(f"the scaler's rate must be above 0 and at most 1, not {rate!r}")
    for module in model.modules():
        if isinstance(module, (Scaler, StaticBatchNorm2d)):
            module.rate = float(rate)
