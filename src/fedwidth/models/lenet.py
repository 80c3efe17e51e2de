"""The simple convolutional net of NIID-Bench, a LeNet-5 with ReLU: two convolutions 5 x 5 and three linear layers."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from fedwidth.errors import OptionError
from fedwidth.models.options import image, positive, sizes

MIN_SIDE = 16
"""Convolutions without padding and pools leave 1 of 16 pixels, and 5 of 32."""


class LeNet(nn.Module):
    """Each convolution is followed by a pool; nothing is normalised, so clients of one sample train too."""

    def __init__(
        self,
        *,
        data_shape: Sequence[int] = (3, 32, 32),
        classes: int = 10,
        widths: Sequence[int] = (6, 16),
        hidden: Sequence[int] = (120, 84),
    ) -> None:
        super().__init__()
        channels, *sides = image(data_shape)
        if min(sides) < MIN_SIDE:
            raise OptionError(f"lenet takes images of at least {MIN_SIDE} x {MIN_SIDE} pixels, not {sides}")
        layers: list[nn.Module] = []
        for units in sizes("widths", widths):
            layers += [nn.Conv2d(channels, units, kernel_size=5), nn.ReLU(), nn.MaxPool2d(2)]
            channels, sides = units, [(side - 4) // 2 for side in sides]
        if min(sides) < 1:
            raise OptionError(f"widths has {len(widths)} convolutions, more than images of this size have pixels for")
        features = channels * sides[0] * sides[1]
        layers.append(nn.Flatten())
        for units in sizes("hidden", hidden):
            layers += [nn.Linear(features, units), nn.ReLU()]
            features = units
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(features, positive("classes", classes))
        nn.init.zeros_(self.classifier.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, classes) of images (N, C, H, W)."""
        logits: Tensor = self.classifier(self.features(x))
        return logits
