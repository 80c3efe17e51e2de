"""The next-word transformer of FedRolex's Stack Overflow experiment.

Shapes: N sequences, T tokens, E embedding, H heads, D head size, V vocabulary.

The defaults are the paper's. The published code differs: 8 heads of 16, GELU, a vocabulary of 10,000 with one
extra embedding row for a mask token it never feeds, 64 positions. Those are options:
`Transformer(vocabulary=10_000, head_size=16, activation="gelu", positions=64, mask_token=True)`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedwidth.errors import DataError, OptionError
from fedwidth.models.options import positive
from fedwidth.models.scaler import Scaler

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU}


def scaled_linear(inputs: int, outputs: int, std: float | None = None) -> nn.Sequential:
    """A linear layer and its scaler; bias zero, weights PyTorch's default or normal with deviation `std`."""
    linear = nn.Linear(inputs, outputs)
    nn.init.zeros_(linear.bias)
    if std is not None:
        nn.init.normal_(linear.weight, std=std)
    return nn.Sequential(linear, Scaler())


class Attention(nn.Module):
    """Causal self-attention; the head size is its own width, the number of heads never changes."""

    def __init__(self, embedding: int, heads: int, head_size: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = scaled_linear(embedding, heads * head_size)
        self.key = scaled_linear(embedding, heads * head_size)
        self.value = scaled_linear(embedding, heads * head_size)
        self.out = scaled_linear(heads * head_size, embedding)

    def split(self, x: Tensor) -> Tensor:
        """(N, T, H * D) -> (N, H, T, D)."""
        return torch.unflatten(x, -1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, E) -> (N, T, E): every token looks at itself and those before it."""
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        # Spelled out instead of a fused kernel: deterministic everywhere and fine under vmap; T is only 20.
        future = torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ k.transpose(-2, -1)) / q.size(-1) ** 0.5
        mixed = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result


class Layer(nn.Module):
    """Post-norm transformer layer."""

    def __init__(self, embedding: int, attention: Attention, hidden: int, *, dropout: float, activation: str) -> None:
        super().__init__()
        self.attention = attention
        self.norm1 = nn.LayerNorm(embedding)
        self.expand = scaled_linear(embedding, hidden, std=0.02)
        self.contract = scaled_linear(hidden, embedding, std=0.02)
        self.norm2 = nn.LayerNorm(embedding)
        self.activation = ACTIVATIONS[activation]()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, E) -> (N, T, E)."""
        x = self.norm1(x + self.dropout(self.attention(x)))
        step = self.contract(self.dropout(self.activation(self.expand(x))))
        result: Tensor = self.norm2(x + self.dropout(step))
        return result


class Transformer(nn.Module):
    """Word and position embeddings, post-norm layers, untied decoder E -> E -> activation -> norm -> V."""

    def __init__(
        self,
        *,
        vocabulary: int = 10_004,
        embedding: int = 128,
        heads: int = 8,
        head_size: int = 12,
        hidden: int = 2048,
        layers: int = 3,
        positions: int = 20,
        dropout: float = 0.1,
        activation: str = "relu",
        mask_token: bool = False,
    ) -> None:
        super().__init__()
        counts = {"vocabulary": vocabulary, "embedding": embedding, "heads": heads, "head_size": head_size}
        counts |= {"hidden": hidden, "layers": layers, "positions": positions}
        for name, count in counts.items():
            positive(name, count)
        if activation not in ACTIVATIONS:
            raise OptionError(f"activation must be 'relu' or 'gelu', not {activation!r}")
        if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
            raise OptionError(f"dropout must be a number of at least 0 and below 1, not {dropout!r}")

        self.words = nn.Embedding(vocabulary + int(mask_token), embedding)
        self.positions = nn.Embedding(positions, embedding)
        self.scaler = Scaler()
        self.norm = nn.LayerNorm(embedding)
        self.dropout = nn.Dropout(dropout)
        stack = []
        for _ in range(layers):
            attention = Attention(embedding, heads, head_size)
            stack.append(Layer(embedding, attention, hidden, dropout=dropout, activation=activation))
        self.layers = nn.Sequential(*stack)
        self.decoder = nn.Sequential(
            scaled_linear(embedding, embedding), ACTIVATIONS[activation](), nn.LayerNorm(embedding)
        )
        self.classifier = nn.Linear(embedding, vocabulary)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (N, T, V) of the word after each of the tokens (N, T)."""
        length, limit = tokens.size(1), self.positions.num_embeddings
        if length > limit:
            raise DataError(f"a sequence has {length} tokens, but the model has {limit} positions")
        positions = self.positions(torch.arange(length, device=tokens.device))
        x = self.scaler(self.words(tokens)) + self.scaler(positions)
        x = self.dropout(self.norm(x))
        logits: Tensor = self.classifier(self.decoder(self.layers(x)))
        return logits
