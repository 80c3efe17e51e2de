"""Mixtures of experts in the forms published models have them (Mixtral, Qwen-MoE, DeepSeek, Switch, GShard)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ExpertLoop(nn.Module):
    """One expert after the other, each with the tokens that chose it (Mixtral, Qwen-MoE as they are read)."""

    def __init__(self, width: int, hidden: int, experts: int = 3, chosen: int = 2) -> None:
        super().__init__()
        self.experts, self.chosen = experts, chosen
        self.embedding, self.router = nn.Embedding(50, width), nn.Linear(width, experts)
        self.gate_up = nn.Parameter(torch.randn(experts, 2 * hidden, width) / math.sqrt(width))
        self.down = nn.Parameter(torch.randn(experts, width, hidden) / math.sqrt(hidden))
        self.out = nn.Linear(width, 10)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        tokens = x.reshape(-1, x.shape[-1])
        weights, experts = self.router(tokens).softmax(-1).topk(self.chosen)
        return self.out((x + self.mix(tokens, weights, experts).view_as(x)).mean(1))

    def mix(self, tokens: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        result = torch.zeros_like(tokens)
        hit = F.one_hot(experts, self.experts).permute(2, 1, 0)
        for expert in hit.sum((1, 2)).nonzero()[:, 0]:
            place, token = torch.where(hit[expert])
            gate, up = F.linear(tokens[token], self.gate_up[expert]).chunk(2, -1)
            found = F.linear(F.silu(gate) * up, self.down[expert]) * weights[token, place, None]
            result.index_add_(0, token, found)
        return result


class ExpertBatch(ExpertLoop):
    """The matrices of each token's experts are gathered, and all tokens multiplied at once."""

    def mix(self, tokens: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        repeated = tokens.repeat_interleave(self.chosen, 0)[..., None]
        gate, up = (self.gate_up[experts.flatten()] @ repeated)[..., 0].chunk(2, -1)
        found = (self.down[experts.flatten()] @ (F.silu(gate) * up)[..., None])[..., 0]
        return (found * weights.flatten()[:, None]).view(len(tokens), self.chosen, -1).sum(1)


class ExpertDispatch(ExpertLoop):
    """Tokens are dispatched by a product with a matrix of ones and zeros (Switch, GShard)."""

    def mix(self, tokens: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        combine = torch.zeros(len(tokens), self.experts, dtype=tokens.dtype).scatter(1, experts, weights)
        gate, up = torch.einsum("td,ehd->eth", tokens, self.gate_up).chunk(2, -1)
        return torch.einsum("eth,edh,te->td", F.silu(gate) * up, self.down, combine)


class ExpertGroups(ExpertLoop):
    """Tokens are sorted by expert, and one operator multiplies each with its expert's matrix (Mixtral as it runs)."""

    def mix(self, tokens: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        expert, order = experts.flatten().sort()
        borders = torch.histc(expert.float(), self.experts, 0, self.experts - 1).cumsum(0, dtype=torch.int32)
        rows = tokens[order // self.chosen].float()  # the operator knows no double precision
        gate, up = F.grouped_mm(rows, self.gate_up.float().mT, offs=borders).chunk(2, -1)
        found = F.grouped_mm(F.silu(gate) * up, self.down.float().mT, offs=borders).to(tokens.dtype)
        found = (found * weights.flatten()[order, None])[order.argsort()]
        return found.view(len(tokens), self.chosen, -1).sum(1)
