"""The cases of patterns in published models that once stayed whole, or failed in training.

Ten stand in the zoo, and the contracts run over them; the others are further forms of the same, for the tracer's tests.
"""

from __future__ import annotations

import torch.nn.functional as F

from zoo.case import Case, images, words
from zoo.experts import ExpertBatch, ExpertDispatch, ExpertGroups, ExpertLoop
from zoo.problem_pictures import (
    AuxiliaryHead,
    LearntQueries,
    NeighbourAttention,
    SelectiveKernel,
    ShuffledHalves,
    SplitScales,
)
from zoo.problem_sequences import (
    ChunkedScan,
    FourierMixing,
    FourierMixingOfUnits,
    MarkedPooling,
    MaskedInTraining,
    PooledTokens,
    SlidingWindows,
)

PROBLEMS: dict[str, Case] = {
    # Inception; the auxiliary head is read in training alone
    "auxiliary-head": Case(
        lambda: AuxiliaryHead(16, 8), lambda: AuxiliaryHead(8, 4), images(), [8, 16, 32], maskable=True
    ),
    # Wav2Vec2, HuBERT
    "masked-in-training": Case(
        lambda: MaskedInTraining(32, 96), lambda: MaskedInTraining(16, 48), words, [32, 96], stacks=False
    ),
    # Mixtral, Qwen-MoE, DeepSeek
    "expert-loop": Case(lambda: ExpertLoop(32, 48), lambda: ExpertLoop(16, 24), words, [32, 48], stacks=False),
    # BART
    "marked-pooling": Case(
        lambda: MarkedPooling(32, 96), lambda: MarkedPooling(16, 48), words, [32, 96], maskable=True, stacks=False
    ),
    # Longformer: residual stream, query-key, feed-forward
    "sliding-windows": Case(
        lambda: SlidingWindows(32, 64),
        lambda: SlidingWindows(16, 32),
        words,
        [32, 32, 64],
        silent=("key.bias",),
    ),
    # Funnel: one number of the configuration is the size of query-key and of value heads
    "pooled-tokens": Case(
        lambda: PooledTokens(32, 4, 8, 64),
        lambda: PooledTokens(16, 4, 4, 32),
        words,
        [8, 8, 32, 64],
        whole=lambda: PooledTokens(16, 2, 8, 32),
        whole_groups=[4, 32, 64],
        couplings=1,
        silent=("key.bias",),
    ),
    # ShuffleNet V2: 48 channels are 24 that pass and 24 that are convolved; the shuffle makes of the first 24 those 12
    # that pass and those 12 that are convolved next. All of these move together.
    "shuffled-halves": Case(
        lambda: ShuffledHalves(48), lambda: ShuffledHalves(24), images(), [12, 12, 24, 96], couplings=2, maskable=True
    ),
    # EdgeNeXt: of three parts of 16 channels the first two are added up; heads of 12 units have 3/4 of their width
    "split-scales": Case(lambda: SplitScales(48, 4), lambda: SplitScales(24, 4), images(), [12, 16, 16], couplings=2),
    # SK-ResNet: two halves of the stem, what both paths give, and the bottleneck
    "selective-kernel": Case(
        lambda: SelectiveKernel(16, 8), lambda: SelectiveKernel(8, 4), images(), [8, 8, 8, 16], couplings=1
    ),
    # Mamba 2: units within heads, states, residual stream
    "chunked-scan": Case(
        lambda: ChunkedScan(32, 4, 16, 16),
        lambda: ChunkedScan(16, 4, 8, 8),
        words,
        [16, 16, 32],
        whole=lambda: ChunkedScan(16, 2, 16, 8),
        whole_groups=[4, 16, 32],
    ),
}

MORE_PROBLEMS: dict[str, Case] = {
    "expert-batch": Case(lambda: ExpertBatch(32, 48), lambda: ExpertBatch(16, 24), words, [32, 48]),
    "expert-dispatch": Case(lambda: ExpertDispatch(32, 48), lambda: ExpertDispatch(16, 24), words, [32, 48]),
    # DETR: backbone, residual stream; query-key and value of the attention; feed-forward
    "learnt-queries": Case(
        lambda: LearntQueries(32, 4, 48),
        lambda: LearntQueries(16, 4, 24),
        images(),
        [8, 8, 32, 48, 64],
        couplings=2,
    ),
    # ECA-NFNet: the residual stream has an order, the width inside the block has none
    "neighbour-attention": Case(
        lambda: NeighbourAttention(16, 32),
        lambda: NeighbourAttention(16, 16),
        images(),
        [32],
        maskable=True,
        stays="spatial size",
    ),
    "fourier-mixing": Case(lambda: FourierMixing(32, 96), lambda: FourierMixing(16, 48), words, [32, 96]),
    # FNet: the Fourier transform of the units holds the residual stream
    "fourier-mixing-of-units": Case(
        lambda: FourierMixingOfUnits(32, 96),
        lambda: FourierMixingOfUnits(32, 48),
        words,
        [96],
        stays="turned into frequencies",
    ),
}
if hasattr(F, "grouped_mm"):  # since PyTorch 2.10
    MORE_PROBLEMS["expert-groups"] = Case(lambda: ExpertGroups(32, 48), lambda: ExpertGroups(16, 24), words, [32, 48])
