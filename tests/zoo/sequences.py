"""Networks over sequences: attention and recurrence."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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


class TiedEncoder(nn.Module):
    """PyTorch's own layer without dropout, so that engines can stack it, and a decoder tied to the embedding."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, width)
        self.layer = nn.TransformerEncoderLayer(width, heads, hidden, dropout=0.0, batch_first=True)
        self.out = nn.Linear(width, 50)
        self.out.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(self.embedding(x)))


class ScaledEmbedding(nn.Embedding):
    """As Gemma has it: the root of the width in a buffer that is not saved."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__(words, width)
        self.register_buffer("scale", torch.tensor(width**0.5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale.to(self.weight.dtype)


class ScaledLM(nn.Module):
    """Word embeddings times the root of their width."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.embedding = ScaledEmbedding(50, width)
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.out = nn.Linear(width, 50)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        return self.out(x + self.fc2(F.relu(self.fc1(x))))


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
