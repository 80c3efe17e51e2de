"""The cases of the zoo by name."""

from __future__ import annotations

import torch
from torch import nn

from zoo.case import Case, images, words
from zoo.convolutional import MLP, DenseNet, FlatCNN, FlatCNNChannelsLast, ShuffleNet, SqueezeExcite, UNet
from zoo.hugging_face import HUGGING_FACE
from zoo.problem_cases import MORE_PROBLEMS, PROBLEMS
from zoo.residual import ConvNeXt, MobileNetV2, PreResNet18, ResNet, ResNeXt, group_norm
from zoo.sequences import Mixture, Recurrent, ScaledLM, TiedEncoder, TiedLM, TorchTransformer, ViT

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
    "tied-encoder": Case(
        lambda: TiedEncoder(32, 4, 48),
        lambda: TiedEncoder(16, 4, 24),
        words,
        [8, 32, 48],
        whole=lambda: TiedEncoder(16, 2, 24),
        whole_groups=[4, 32, 48],
        couplings=1,
    ),
    "scaled-lm": Case(lambda: ScaledLM(16, 24), lambda: ScaledLM(8, 12), words, [16, 24]),
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
    **PROBLEMS,
}

EVERY = ZOO | HUGGING_FACE
PLANNED = EVERY | MORE_PROBLEMS
"""Cases for the tests of plans and of narrow modules; the contracts leave out further forms of the same."""
