"""Networks with residual streams of convolutions."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def batch_norm(width: int) -> nn.Module:
    return nn.BatchNorm2d(width)


def group_norm(groups: int) -> Callable[[int], nn.Module]:
    return lambda width: nn.GroupNorm(groups, width)


class BasicBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = norm(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = norm(after)
        self.shortcut = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), norm(after))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, width: int, norm: Callable[[int], nn.Module] = batch_norm) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.norm = norm(width)
        self.blocks = nn.Sequential(
            BasicBlock(width, width, 1, norm),
            BasicBlock(width, 2 * width, 2, norm),
            BasicBlock(2 * width, 2 * width, 1, norm),
        )
        self.fc = nn.Linear(2 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3)))


class PreActivationBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(before)
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        if stride != 1 or before != after:
            self.shortcut = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(x))
        shortcut = self.shortcut(y) if hasattr(self, "shortcut") else x
        return self.conv2(F.relu(self.norm2(self.conv1(y)))) + shortcut


class PreResNet18(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        blocks, before = [], width
        for stage, stride in enumerate((1, 2, 2, 2)):
            after = width * 2**stage
            blocks += [PreActivationBlock(before, after, stride), PreActivationBlock(after, after, 1)]
            before = after
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(before)
        self.fc = nn.Linear(before, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(F.relu(self.norm(self.blocks(self.conv1(x)))), 1)
        return self.fc(torch.flatten(x, 1))


def conv_norm(before: int, after: int, kernel: int = 1, *, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(after)]


class InvertedResidual(nn.Module):
    def __init__(self, before: int, after: int, stride: int, expand: int) -> None:
        super().__init__()
        inner = before * expand
        first = [*conv_norm(before, inner), nn.ReLU6()] if expand > 1 else []
        depthwise = [*conv_norm(inner, inner, 3, stride=stride, groups=inner), nn.ReLU6()]
        self.layers = nn.Sequential(*first, *depthwise, *conv_norm(inner, after))
        self.residual = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.residual else self.layers(x)


class MobileNetV2(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(*conv_norm(3, 2 * width, 3), nn.ReLU6())
        self.blocks = nn.Sequential(
            InvertedResidual(2 * width, 2 * width, 1, 1),
            InvertedResidual(2 * width, 3 * width, 2, 4),
            InvertedResidual(3 * width, 3 * width, 1, 4),
        )
        self.head = nn.Sequential(*conv_norm(3 * width, 8 * width), nn.ReLU6())
        self.fc = nn.Linear(8 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.head(self.blocks(self.stem(x))).mean((2, 3)))


class ResNeXt(nn.Module):
    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1)
        self.reduce = nn.Conv2d(width, 2 * width, 1)
        self.norm = nn.BatchNorm2d(2 * width)
        self.grouped = nn.Conv2d(2 * width, 2 * width, 3, 1, 1, groups=groups)
        self.expand = nn.Conv2d(2 * width, width, 1)
        self.fc = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.expand(F.relu(self.grouped(F.relu(self.norm(self.reduce(x))))))
        return self.fc(x.mean((2, 3)))


class ChannelsFirstNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, 1, 3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.reduce = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.reduce(F.gelu(self.expand(y))) * self.scale
        return x + y.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 2, 2),
            ChannelsFirstNorm(width),
            ConvNeXtBlock(width),
            ChannelsFirstNorm(width),
            nn.Conv2d(width, 2 * width, 2, 2),
            ConvNeXtBlock(2 * width),
        )
        self.norm = nn.LayerNorm(2 * width)
        self.fc = nn.Linear(2 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.layers(x).mean((2, 3))))
