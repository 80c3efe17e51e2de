"""HeteroFL's convolutional net, for images of any size from 2 x 2 up."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from fedwidth.models.options import image, positive, sizes
from fedwidth.models.static_norm import StaticBatchNorm2d


class Cnn(nn.Module):
    """Blocks of conv 3x3, static batch norm (the scaler is in it), ReLU and pool; then average pool and a linear layer.

    HeteroFL pools after every block but the last (28 -> 14 -> 7 -> 3). Images too small for that keep at least 2 x 2
    positions, so that a batch of one sample still has statistics (8 -> 4 -> 2 -> 2).
    """

    def __init__(
        self,
        *,
        data_shape: Sequence[int] = (1, 28, 28),
        classes: int = 10,
        widths: Sequence[int] = (64, 128, 256, 512),
    ) -> None:
        super().__init__()
        channels, height, width = image(data_shape)
        widths = sizes("widths", widths)
        side = min(height, width)
        layers: list[nn.Module] = []
        for block, units in enumerate(widths, start=1):
            conv = nn.Conv2d(channels, units, kernel_size=3, padding=1)
            layers += [conv, StaticBatchNorm2d(units), nn.ReLU()]
            if block < len(widths) and side >= 4:
                layers.append(nn.MaxPool2d(2))
                side //= 2
            channels = units
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, positive("classes", classes))
        nn.init.zeros_(self.classifier.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, classes) of images (N, C, H, W)."""
        logits: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return logits
