"""Small copies of what published models of pictures do that was once not sliced, or not seen at all.

Inception's auxiliary head, channel shuffles (ShuffleNet), split scales with attention across channels (EdgeNeXt),
selective kernels (SK-ResNet), learnt queries (DETR).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class AuxiliaryHead(nn.Module):
    """In training, a second classifier reads an early layer and its logits are added."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width)
        self.body = nn.Conv2d(width, 2 * width, 3, 1, 1)
        self.auxiliary = nn.Sequential(nn.Conv2d(width, inner, 1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * inner, 10))
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        logits = self.head(F.relu(self.body(x)).mean((2, 3)))
        return logits + 0.3 * self.auxiliary(x) if self.training else logits


class ShuffledHalves(nn.Module):
    """Half of the channels pass, the others are convolved, and both are shuffled (ShuffleNet V2)."""

    def __init__(self, width: int, blocks: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 2, 1)
        half = width // 2
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Conv2d(half, half, 1), nn.ReLU(), nn.Conv2d(half, half, 3, 1, 1, groups=half))
            for _ in range(blocks)
        )
        self.last, self.out = nn.Conv2d(width, 2 * width, 1), nn.Linear(2 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        for branch in self.branches:
            kept, changed = x.chunk(2, dim=1)
            x = torch.cat([kept, branch(changed)], 1)
            n, c, h, w = x.size()
            x = x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)
        return self.out(F.relu(self.last(x)).mean((2, 3)))


class SplitScales(nn.Module):
    """Channels in three parts, each convolved with what came before; then attention across channels."""

    def __init__(self, width: int, heads: int, parts: int = 3) -> None:
        super().__init__()
        part = width // parts
        self.stem = nn.Conv2d(3, width, 2, 2)
        self.convs = nn.ModuleList(nn.Conv2d(part, part, 3, 1, 1, groups=part) for _ in range(parts - 1))
        self.heads, self.temperature = heads, nn.Parameter(torch.ones(heads, 1, 1))
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        parts, found, last = x.chunk(len(self.convs) + 1, dim=1), [], 0
        for part, conv in zip(parts, self.convs, strict=False):
            last = conv(part + last)
            found.append(last)
        x = torch.cat([*found, parts[-1]], 1).flatten(2).mT
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(n, length, 3, self.heads, -1).permute(2, 0, 3, 4, 1).unbind(0)
        weights = ((F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT) * self.temperature).softmax(-1)
        x = x + self.mix((weights @ v).permute(0, 3, 1, 2).reshape(n, length, width))
        return self.out(x.mean(1))


class SelectiveKernel(nn.Module):
    """Half of the channels go through each of two convolutions, and attention chooses between the results."""

    def __init__(self, width: int, reduced: int) -> None:
        super().__init__()
        self.in_channels, self.num_paths = width, 2
        self.stem = nn.Conv2d(3, width, 3, 2, 1)
        self.paths = nn.ModuleList(nn.Conv2d(width // 2, width, 3, 1, d, dilation=d) for d in (1, 2))
        self.reduce, self.select = nn.Conv2d(width, reduced, 1), nn.Conv2d(reduced, 2 * width, 1)
        self.out = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        halves = torch.split(x, self.in_channels // self.num_paths, 1)
        paths = torch.stack([path(half) for path, half in zip(self.paths, halves, strict=True)], dim=1)
        chosen = self.select(F.relu(self.reduce(paths.sum(1).mean((2, 3), keepdim=True))))
        n, c, h, w = chosen.shape
        chosen = chosen.view(n, self.num_paths, c // self.num_paths, h, w).softmax(1)
        return self.out((paths * chosen).sum(1).mean((2, 3)))


class LearntQueries(nn.Module):
    """A picture's features with learnt positions, read by learnt queries."""

    def __init__(self, width: int, heads: int, hidden: int, queries: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 2 * width, 4, 4)
        self.project = nn.Conv2d(2 * width, width, 1)
        self.rows, self.columns = nn.Embedding(4, width), nn.Embedding(4, width)
        self.queries = nn.Embedding(queries, width)
        self.attend = nn.MultiheadAttention(width, heads, batch_first=True)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.project(F.relu(self.stem(x)))
        h, w = x.shape[-2:]
        places = self.rows.weight[:h, None] + self.columns.weight[None, :w]
        memory = x.flatten(2).mT
        queries = self.queries.weight[None].expand(len(x), -1, -1)
        found = self.norm(queries + self.attend(queries, memory + places.flatten(0, 1), memory, need_weights=False)[0])
        return self.out(found + self.down(F.relu(self.up(found))))


class NeighbourAttention(nn.Module):
    """Channels are weighed by a convolution that runs along them, so that each has neighbours (ECA)."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.stem, self.expand = nn.Conv2d(3, channels, 3, padding=1), nn.Conv2d(channels, inner, 1)
        self.project, self.weigh = nn.Conv2d(inner, channels, 1), nn.Conv1d(1, 1, 3, padding=1, bias=False)
        self.head = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.project(torch.relu(self.expand(x)))
        weights = self.weigh(y.mean((2, 3))[:, None]).sigmoid()
        return self.head((x + y * weights[:, 0, :, None, None]).mean((2, 3)))
