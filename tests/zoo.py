"""Small versions of the architectures a plan must be right on, each with the same class at half width.

Every model class takes its widths as arguments, so `Case.half` is what an engineer would have written by hand for half
the width, and `narrow` can be compared with it. `Case.groups` are the expected sizes of the width groups, derived by
hand: a tracer that freezes too much fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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


class FusedAttention(nn.Module):
    def __init__(self, width: int, heads: int, size: int) -> None:
        super().__init__()
        self.heads, self.size = heads, size
        self.scale = size**-0.5
        self.qkv = nn.Linear(width, 3 * heads * size)
        self.out = nn.Linear(heads * size, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        y = (q * self.scale @ k.transpose(-1, -2)).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, self.heads * self.size))


class ViT(nn.Module):
    def __init__(self, width: int, heads: int, size: int, hidden: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.cls = nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 5, width))
        self.norm1, self.norm2, self.norm = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = FusedAttention(width, heads, size)
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.size(0), -1, -1), x], 1) + self.position
        x = x + self.attention(self.norm1(x))
        x = x + self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return self.head(self.norm(x)[:, 0])


class TorchTransformer(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, width)
        layer = nn.TransformerEncoderLayer(width, heads, hidden, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, 50)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.encoder(self.embedding(x)))


class TiedLM(nn.Module):
    """Attention from plain operations, word embedding tied to the output layer."""

    def __init__(self, width: int, heads: int, hidden: int, size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, width)
        self.heads = heads
        inner = heads * size
        self.query, self.key, self.value = (nn.Linear(width, inner) for _ in range(3))
        self.mix = nn.Linear(inner, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.out = nn.Linear(width, 50)
        self.out.weight = self.embedding.weight

    def split(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        return x.view(b, t, self.heads, d // self.heads).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        y = (q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))).softmax(-1) @ v
        x = self.norm1(x + self.mix(y.transpose(1, 2).flatten(2)))
        return self.out(self.norm2(x + self.fc2(F.relu(self.fc1(x)))))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], embedding: int, hidden: int, *, both_ways: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, embedding)
        layers = 1 if both_ways else 2
        self.rnn = kind(embedding, hidden, layers, batch_first=True, bidirectional=both_ways)
        self.out = nn.Linear(hidden * (1 + both_ways), 50)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(self.embedding(x))[0])


class Mixture(nn.Module):
    """Interleaved qkv per head, einsum, a gated unit, a buffer, a bare matrix."""

    def __init__(self, width: int, heads: int, size: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.size = heads, size
        self.inputs = nn.Linear(10, width)
        self.register_buffer("gain", torch.rand(width))
        self.qkv = nn.Linear(width, heads * 3 * size)
        self.mix = nn.Linear(heads * size, width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * hidden), nn.Linear(hidden, width)
        self.matrix = nn.Parameter(torch.randn(width, width) * 0.1)
        self.out = nn.Linear(width, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inputs(x) * self.gain
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, self.heads, 3 * self.size).split(self.size, -1)
        weight = torch.einsum("bqhd,bkhd->bhqk", q, k).softmax(-1)
        x = x + self.mix(torch.einsum("bhqk,bkhd->bqhd", weight, v).reshape(b, t, -1))
        x = x + self.fc2(F.glu(self.fc1(x)))
        x = x + torch.einsum("btd,de->bte", x, self.matrix)
        return self.out(x.mean(1))


Build = Callable[[], nn.Module]


@dataclass(frozen=True)
class Case:
    """A model, the same at half width, and what a plan of it must contain."""

    full: Build
    half: Build
    inputs: Callable[[], Any]
    groups: list[int]
    """Sizes of the width groups, sorted."""
    whole: Build | None = None
    """Half as many heads of full size, where heads="whole" differs."""
    whole_groups: list[int] | None = None
    couplings: int = 0
    maskable: bool = False
    """A narrow model equals the full one with the dropped units zeroed (no norm across units)."""
    silent: tuple[str, ...] = ()
    """Tensors the output does not depend on (a key bias shifts all scores of a softmax alike)."""
    output: Callable[[Any], Any] | None = None


def images(size: int = 8) -> Callable[[], Tensor]:
    return lambda: torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


def words() -> Tensor:
    return torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(1))


ZOO: dict[str, Case] = {
    "mlp": Case(lambda: MLP(16, 12), lambda: MLP(8, 6), images(4), [12, 16], maskable=True),
    "cnn-nchw": Case(lambda: FlatCNN(8, 12, 20), lambda: FlatCNN(4, 6, 10), images(8), [8, 12, 20], maskable=True),
    "cnn-nhwc": Case(
        lambda: FlatCNNChannelsLast(8, 12, 20),
        lambda: FlatCNNChannelsLast(4, 6, 10),
        images(8),
        [8, 12, 20],
        maskable=True,
    ),
    # residual streams 8 and 16, one inner width per block
    "resnet-bn": Case(lambda: ResNet(8), lambda: ResNet(4), images(), [8, 8, 16, 16, 16], maskable=True),
    # four groups: within a group 8 / 4 and 16 / 4 channels
    "resnet-gn": Case(
        lambda: ResNet(8, group_norm(4)),
        lambda: ResNet(4, group_norm(4)),
        images(),
        [2, 2, 4, 4, 4],
        whole=lambda: ResNet(4, group_norm(2)),
        whole_groups=[4, 4, 4, 4, 4],
    ),
    # four streams, eight inner widths
    "preresnet18": Case(
        lambda: PreResNet18(4),
        lambda: PreResNet18(2),
        images(),
        [4, 4, 4, 8, 8, 8, 16, 16, 16, 32, 32, 32],
        maskable=True,
    ),
    # streams 8 and 12, inner 32 and 48, head 32
    "mobilenetv2": Case(lambda: MobileNetV2(4), lambda: MobileNetV2(2), images(), [8, 12, 32, 32, 48], maskable=True),
    "resnext": Case(
        lambda: ResNeXt(16, 4),
        lambda: ResNeXt(8, 4),
        images(),
        [8, 8, 16],
        whole=lambda: ResNeXt(8, 2),
        whole_groups=[4, 16],
        maskable=True,
    ),
    # shuffled 4 x 8 channels meet 4 groups again: (4 x 2) per group stay addressable
    "shufflenet": Case(lambda: ShuffleNet(16, 32, 4), lambda: ShuffleNet(8, 16, 4), images(), [2, 4], maskable=True),
    "densenet": Case(
        lambda: DenseNet(4), lambda: DenseNet(2), images(), [4, 4, 4, 4, 8, 8, 16, 16, 16, 16], maskable=True
    ),
    "unet": Case(lambda: UNet(8), lambda: UNet(4), images(), [8, 8, 8, 16], maskable=True),
    "squeeze-excite": Case(lambda: SqueezeExcite(16), lambda: SqueezeExcite(8), images(), [4, 16], maskable=True),
    "convnext": Case(lambda: ConvNeXt(8), lambda: ConvNeXt(4), images(), [8, 16, 32, 64]),
    "vit": Case(
        lambda: ViT(32, 4, 8, 48),
        lambda: ViT(16, 4, 4, 24),
        images(8),
        [8, 32, 48],
        whole=lambda: ViT(16, 2, 8, 24),
        whole_groups=[4, 32, 48],
    ),
    "transformer-encoder": Case(
        lambda: TorchTransformer(32, 4, 48),
        lambda: TorchTransformer(16, 4, 24),
        words,
        [8, 8, 32, 48, 48],
        whole=lambda: TorchTransformer(16, 2, 24),
        whole_groups=[4, 4, 32, 48, 48],
        couplings=2,
    ),
    "tied-lm": Case(
        lambda: TiedLM(32, 4, 48, 8),
        lambda: TiedLM(16, 4, 24, 4),
        words,
        [8, 8, 32, 48],
        whole=lambda: TiedLM(16, 2, 24, 8),
        whole_groups=[4, 32, 48],
        silent=("key.bias",),
    ),
    # one hidden width per layer, of equal size
    "lstm": Case(
        lambda: Recurrent(nn.LSTM, 16, 24), lambda: Recurrent(nn.LSTM, 8, 12), words, [16, 24, 24], couplings=1
    ),
    "gru": Case(lambda: Recurrent(nn.GRU, 16, 24), lambda: Recurrent(nn.GRU, 8, 12), words, [16, 24, 24], couplings=1),
    "bilstm": Case(
        lambda: Recurrent(nn.LSTM, 16, 24, both_ways=True),
        lambda: Recurrent(nn.LSTM, 8, 12, both_ways=True),
        words,
        [16, 24, 24],
        couplings=1,
    ),
    "mixture": Case(
        lambda: Mixture(24, 4, 6, 20),
        lambda: Mixture(12, 4, 3, 10),
        lambda: torch.randn(2, 5, 10, generator=torch.Generator().manual_seed(1)),
        [6, 6, 20, 24],
        whole=lambda: Mixture(12, 2, 6, 10),
        whole_groups=[4, 20, 24],
        couplings=1,
    ),
}


def bert(**sizes: int) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    chosen = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4} | sizes
    fixed = {"vocab_size": 50, "num_hidden_layers": 2, "max_position_embeddings": 32, "num_labels": 5}
    return BertForSequenceClassification(BertConfig(**fixed, **chosen))


def gpt2(**sizes: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    chosen = {"n_embd": 32, "n_inner": 48, "n_head": 4} | sizes
    fixed = {"vocab_size": 50, "n_layer": 2, "n_positions": 32, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**fixed, **chosen))


def llama(**sizes: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    chosen = {"hidden_size": 32, "intermediate_size": 48} | heads | sizes
    fixed = {"vocab_size": 50, "num_hidden_layers": 2, "max_position_embeddings": 32, "tie_word_embeddings": True}
    return LlamaForCausalLM(LlamaConfig(**fixed, **chosen))


def t5(**sizes: int) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    chosen = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4} | sizes
    fixed = {"vocab_size": 50, "num_layers": 1, "decoder_start_token_id": 0, "dropout_rate": 0.0}
    return T5ForConditionalGeneration(T5Config(**fixed, **chosen))


def logits(result: Any) -> Tensor:
    return result.logits


# Test-only dependency: tests skip these where transformers is not installed.
HUGGING_FACE: dict[str, Case] = {
    # residual stream, pooler; per layer query-key, value and intermediate
    "bert": Case(
        bert,
        lambda: bert(hidden_size=16, intermediate_size=24),
        lambda: {"input_ids": words()},
        [8, 8, 8, 8, 32, 32, 48, 48],
        whole=lambda: bert(hidden_size=16, intermediate_size=24, num_attention_heads=2),
        whole_groups=[4, 4, 32, 32, 48, 48],
        couplings=2,
        silent=("key.bias",),
    ),
    "gpt2": Case(
        gpt2,
        lambda: gpt2(n_embd=16, n_inner=24),
        lambda: {"input_ids": words()},
        [8, 8, 8, 8, 32, 48, 48],
        whole=lambda: gpt2(n_embd=16, n_inner=24, n_head=2),
        whole_groups=[4, 4, 32, 48, 48],
        couplings=2,
    ),
    # rotary embedding pairs units d and d + 4, so 4 pairs, the same in all layers; one value width per layer
    "llama": Case(
        llama,
        lambda: llama(hidden_size=16, intermediate_size=24, head_dim=4),
        lambda: {"input_ids": words()},
        [4, 8, 8, 32, 48, 48],
        whole=lambda: llama(hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1),
        whole_groups=[2, 2, 32, 48, 48],
        couplings=2,
    ),
    # residual stream of encoder and decoder; three attentions with query-key and value; two feed-forwards
    "t5": Case(
        t5,
        lambda: t5(d_model=16, d_kv=4, d_ff=24),
        lambda: {"input_ids": words(), "decoder_input_ids": words()[:, :4]},
        [8, 8, 8, 8, 8, 8, 32, 48, 48],
        whole=lambda: t5(d_model=16, num_heads=2, d_ff=24),
        couplings=3,
        output=logits,
    ),
}
EVERY = ZOO | HUGGING_FACE


def build(make: Build, seed: int = 0) -> nn.Module:
    """The model in evaluation mode and float64, with every tensor random (fresh biases and norms hold constants)."""
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = make().double().eval()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.3, generator=generator)
                module.running_var.uniform_(0.5, 1.5, generator=generator)
    torch.random.set_rng_state(state)
    return model


def doubled(inputs: Any) -> Any:
    """Example inputs in float64."""
    return inputs.double() if isinstance(inputs, Tensor) and inputs.is_floating_point() else inputs


def run(model: nn.Module, inputs: Any) -> Tensor:
    """The model's (first) output."""
    result = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    return result if isinstance(result, Tensor) else result.logits
