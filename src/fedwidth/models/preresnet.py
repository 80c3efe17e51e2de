"""Pre-activation ResNet18 for 32 x 32 images, as HeteroFL and FedRolex use it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedwidth.errors import OptionError
from fedwidth.models.norm_relu import has_norm_relu, norm_relu, takes_norm_relu
from fedwidth.models.options import image, positive, sizes
from fedwidth.models.static_norm import StaticBatchNorm2d


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the image size at stride 1; the norms that follow make a bias pointless."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


GROUPS = 4
"""The groups of group norm, at every width: a sixteenth of 64 channels has one channel in each."""


class ScaledNorm(nn.Sequential):
    """Static batch norm (with the scaler in it) or group norm (which undoes a scale), ReLU: what comes before every
    convolution but the first."""

    fused = False
    """Whether training computes static batch norm and ReLU in one operation, where that takes the activation."""

    def __init__(self, channels: int, norm: str) -> None:
        super().__init__(StaticBatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(GROUPS, channels), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """The norm, then the ReLU."""
        norm, relu = self
        fused = self.fused and takes_norm_relu(x)
        if fused and isinstance(norm, StaticBatchNorm2d) and norm.training and not norm.collecting:
            return norm_relu(x, norm.weight, norm.bias, norm.scaled_epsilon)
        out: Tensor = relu(norm(x))
        return out


def fuse_norms(model: nn.Module, device: torch.device) -> None:
    """Let training on this device compute static batch norms and ReLUs in one operation, where the device has one."""
    if has_norm_relu(device):
        for module in model.modules():
            if isinstance(module, ScaledNorm):
                module.fused = True


class Block(nn.Module):
    """norm-conv-norm-conv beside a shortcut; where the shape changes, a 1x1 convolution of the activated input."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.norm1 = ScaledNorm(inputs, norm)
        self.conv1 = conv(inputs, outputs, 3, stride)
        self.norm2 = ScaledNorm(outputs, norm)
        self.conv2 = conv(outputs, outputs, 3)
        self.shortcut = conv(inputs, outputs, 1, stride) if stride != 1 or inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        """One residual step."""
        active = self.norm1(x)
        kept = x if self.shortcut is None else self.shortcut(active)
        step: Tensor = self.conv2(self.norm2(self.conv1(active)))
        return step + kept


class PreResNet18(nn.Module):
    """Stem, four stages of two blocks (each stage after the first halves the image), norm, average pool, linear."""

    def __init__(
        self,
        *,
        data_shape: Sequence[int] = (3, 32, 32),
        classes: int = 10,
        widths: Sequence[int] = (64, 128, 256, 512),
        norm: str = "batch",
    ) -> None:
        """`norm` is "batch" (static, with statistics collected before evaluation) or "group"."""
        super().__init__()
        widths = sizes("widths", widths)
        if len(widths) != 4:
            raise OptionError(f"widths must be four numbers, one per stage, not {list(widths)}")
        if norm not in ("batch", "group"):
            raise OptionError(f"norm must be 'batch' or 'group', not {norm!r}")
        if norm == "group" and any(width % GROUPS for width in widths):
            raise OptionError(f"with group norm widths must be multiples of {GROUPS}, not {list(widths)}")
        self.stem = conv(image(data_shape)[0], widths[0], 3)
        inputs, blocks = widths[0], []
        for stage, outputs in enumerate(widths):
            blocks += [
                Block(inputs, outputs, stride=1 if stage == 0 else 2, norm=norm),
                Block(outputs, outputs, stride=1, norm=norm),
            ]
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.norm = ScaledNorm(inputs, norm)
        self.classifier = nn.Linear(inputs, positive("classes", classes))
        nn.init.zeros_(self.classifier.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, classes) of images (N, C, H, W)."""
        features = self.norm(self.blocks(self.stem(x)))
        logits: Tensor = self.classifier(F.adaptive_avg_pool2d(features, 1).flatten(1))
        return logits
