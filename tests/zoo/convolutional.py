"""Networks without residual streams: dense layers, convolutions, concatenations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Module):
    def __init__(self, first: int, second: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(48, first), nn.ReLU(), nn.Linear(first, second))
        self.out = nn.Linear(second, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.relu(self.layers(x)))


class FlatCNN(nn.Module):
    """Channels first when flattened: (channel, height, width)."""

    def __init__(self, first: int, second: int, hidden: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, first, 3, padding=1)
        self.conv2 = nn.Conv2d(first, second, 3, padding=1)
        self.fc1 = nn.Linear(second * 4, hidden)
        self.fc2 = nn.Linear(hidden, 10)

    def flat(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), -1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(self.flat(x))))


class FlatCNNChannelsLast(FlatCNN):
    """(height, width, channel), with the size taken from an attribute of another module."""

    def flat(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).reshape(-1, self.fc1.in_features)


class ShuffleNet(nn.Module):
    """Grouped convolution, channel shuffle, depthwise convolution, grouped convolution."""

    def __init__(self, width: int, inner: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.stem = nn.Conv2d(3, width, 3, 1, 1)
        self.first = nn.Conv2d(width, inner, 1, groups=groups)
        self.depthwise = nn.Conv2d(inner, inner, 3, 1, 1, groups=inner)
        self.second = nn.Conv2d(inner, width, 1, groups=groups)
        self.fc = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        y = F.relu(self.first(x))
        n, c, h, w = y.shape
        y = y.view(n, self.groups, c // self.groups, h, w).transpose(1, 2).reshape(n, c, h, w)
        return self.fc((x + self.second(self.depthwise(y))).mean((2, 3)))


class DenseLayer(nn.Module):
    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(before)
        self.conv1 = nn.Conv2d(before, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(F.relu(self.norm2(y)))], 1)


class DenseNet(nn.Module):
    def __init__(self, growth: int) -> None:
        super().__init__()
        width = 2 * growth
        layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False)]
        for block in range(2):
            for _ in range(2):
                layers.append(DenseLayer(width, growth))
                width += growth
            layers += [nn.BatchNorm2d(width), nn.ReLU()]
            if block == 0:
                layers += [nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
                width //= 2
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layers(x).mean((2, 3)))


class UNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down1 = nn.Conv2d(3, width, 3, 1, 1)
        self.down2 = nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.merge = nn.Conv2d(2 * width, width, 3, 1, 1)
        self.out = nn.Conv2d(width, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        high = F.relu(self.down1(x))
        low = F.relu(self.down2(high))
        return self.out(F.relu(self.merge(torch.cat([self.up(low), high], 1))))


class SqueezeExcite(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1)
        self.squeeze = nn.Conv2d(width, width // 4, 1)
        self.excite = nn.Conv2d(width // 4, width, 1)
        self.fc = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(x, 1)))))
        return self.fc((x * gate).mean((2, 3)))
