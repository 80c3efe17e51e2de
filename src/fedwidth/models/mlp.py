"""The thesis' multilayer perceptron: 784-128-32-10."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from fedwidth.models.options import positive, sizes


class Mlp(nn.Module):
    """Linear layers with ReLU between them; anything in `data_shape` is flattened first."""

    def __init__(
        self, *, data_shape: Sequence[int] = (1, 28, 28), classes: int = 10, hidden: Sequence[int] = (128, 32)
    ) -> None:
        super().__init__()
        inputs = math.prod(sizes("data_shape", data_shape))
        layers: list[nn.Module] = [nn.Flatten()]
        for units in sizes("hidden", hidden):
            layers += [nn.Linear(inputs, units), nn.ReLU()]
            inputs = units
        self.hidden = nn.Sequential(*layers)
        self.classifier = nn.Linear(inputs, positive("classes", classes))
        nn.init.zeros_(self.classifier.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, classes)."""
        logits: Tensor = self.classifier(self.hidden(x))
        return logits
