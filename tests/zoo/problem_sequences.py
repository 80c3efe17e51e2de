"""Small copies of what published models of sequences do that was once not sliced, or not seen at all.

SpecAugment (Wav2Vec2, HuBERT), pooling at a marked token (BART), sliding windows (Longformer), pooling along tokens
with sizes from a configuration (Funnel), mixing of tokens by a Fourier transform (FNet), chunks of a sequence
(Mamba 2).
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MaskedInTraining(nn.Module):
    """In training, a learnt vector takes the place of some positions."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, width)
        self.masked = nn.Parameter(torch.rand(width))
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.out = nn.Linear(width, 10)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        if self.training:
            x = x.clone()
            x[words % 3 == 0] = self.masked.to(x.dtype)
        return self.out((x + self.down(F.relu(self.up(x)))).mean(1))


class MarkedPooling(nn.Module):
    """The classifier reads the last of the positions that a mask picks."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.out = nn.Linear(width, 10)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        x = x + self.down(F.relu(self.up(x)))
        marked = torch.zeros_like(words, dtype=torch.bool)
        marked[:, [2, -1]] = True
        return self.out(x[marked].view(len(x), -1, x.size(-1))[:, -1])


class SlidingWindows(nn.Module):
    """Queries and keys are compared within overlapping chunks, read by strides."""

    def __init__(self, width: int, hidden: int, window: int = 2) -> None:
        super().__init__()
        self.window = window
        self.embedding = nn.Embedding(50, width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.out = nn.Linear(width, 10)

    def chunks(self, x: Tensor) -> Tensor:
        x = x.view(x.shape[0], x.shape[1] // (2 * self.window), 2 * self.window, x.shape[2])
        size, stride = list(x.size()), list(x.stride())
        size[1], stride[1] = size[1] * 2 - 1, stride[1] // 2
        return x.as_strided(size=size, stride=stride)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words[:, :8])
        query, key, value = (self.chunks(layer(x)) for layer in (self.query, self.key, self.value))
        weights = (torch.einsum("bcxd,bcyd->bcxy", query, key) / math.sqrt(x.shape[-1])).softmax(-1)
        x = x + torch.einsum("bcxy,bcyd->bcxd", weights, value).mean((1, 2))[:, None]
        return self.out((x + self.down(F.relu(self.up(x)))).mean(1))


class PooledTokens(nn.Module):
    """Tokens are pooled as if they were pictures one unit wide; the sizes of heads stand in a configuration."""

    def __init__(self, width: int, heads: int, size: int, hidden: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(heads=heads, size=size)
        self.embedding = nn.Embedding(50, width)
        self.query, self.key, self.value = (nn.Linear(width, heads * size) for _ in range(3))
        self.bias = nn.Parameter(torch.rand(heads, size))
        self.mix = nn.Linear(heads * size, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.out = nn.Linear(width, 10)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        pooled = F.avg_pool2d(x[:, None], (2, 1), stride=(2, 1), ceil_mode=True)[:, 0]
        heads, size = self.config.heads, self.config.size
        query = self.query(pooled).view(len(x), -1, heads, size) + self.bias
        key, value = (layer(x).view(len(x), -1, heads, size) for layer in (self.key, self.value))
        weights = (torch.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(size)).softmax(-1)
        mixed = torch.einsum("bhqk,bkhd->bqhd", weights, value).reshape(len(x), -1, heads * size)
        x = pooled + self.mix(mixed)
        return self.out((x + self.down(F.relu(self.up(x)))).mean(1))


class FourierMixing(nn.Module):
    """Tokens are mixed by a Fourier transform along the sequence."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(50, width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.out = nn.Linear(width, 10)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        x = self.norm(x + torch.fft.fft(x, dim=1).real)
        return self.out((x + self.down(F.gelu(self.up(x)))).mean(1))


class FourierMixingOfUnits(FourierMixing):
    """As FNet has it: the units are transformed, too, so that each of them has its place."""

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        x = self.norm(x + torch.fft.fftn(x, dim=(1, 2)).real)
        return self.out((x + self.down(F.gelu(self.up(x)))).mean(1))


class ChunkedScan(nn.Module):
    """A sequence is padded and read in chunks, heads share groups of states, and sums run along each chunk."""

    def __init__(self, width: int, heads: int, size: int, states: int, chunk: int = 4) -> None:
        super().__init__()
        self.heads, self.size, self.states, self.chunk = heads, size, states, chunk
        self.inner = heads * size
        self.embedding = nn.Embedding(50, width)
        self.project = nn.Linear(width, 2 * self.inner + 2 * states + heads)
        self.rate, self.skip = nn.Parameter(torch.rand(heads)), nn.Parameter(torch.rand(heads))
        self.norm, self.mix = nn.LayerNorm(self.inner), nn.Linear(self.inner, width)
        self.out = nn.Linear(width, 10)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        gate, values, write, read, step = self.project(x).split(
            [self.inner, self.inner, self.states, self.states, self.heads], dim=-1
        )
        n, length, _ = x.shape
        padding = (self.chunk - length % self.chunk) % self.chunk
        values = values.reshape(n, length, self.heads, self.size)
        decay = F.softplus(step) * self.rate
        values, write, read, decay = (
            F.pad(part, (*(0, 0) * (part.dim() - 2), 0, padding)).reshape(n, -1, self.chunk, *part.shape[2:])
            for part in (values, write, read, decay)
        )
        weights = torch.exp(-decay.cumsum(2))[..., None]
        state = torch.einsum("bclhd,bcls->bchds", values * weights, write).cumsum(1)
        found = torch.einsum("bchds,bcls->bclhd", state, read) + values * self.skip[:, None]
        found = found.reshape(n, -1, self.inner)[:, :length]
        x = x + self.mix(self.norm(found * F.silu(gate)))
        return self.out(x.mean(1))
