"""The gradients of many models of one shape from one call (`torch.func.vmap`).

By default gradients are taken by `torch.func.grad` inside of vmap, so that the backward pass is stacked as well. Models
whose layers have a stacked form (`stacks.layers`: convolutional models on a GPU) take those of the sum of the losses by
plain autograd instead: a model's parameters move only its own loss, and only the forward pass is stacked. There images
lie sample, height, width, client, channel in memory (`client_channels_last`): stacked convolutions and norms then find
their channels last without a copy.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedwidth.data.trees import Tree, mapped
from fedwidth.engines.stacks.layers import has_stacked_layers
from fedwidth.objectives import CLASSIFICATION
from fedwidth.objectives.losses import in_single_precision
from fedwidth.training.loss import Pass, loss_of
from fedwidth.training.rule import PLAIN, Rule

Tensors = Mapping[str, Tensor]


def gradients_of(
    module: nn.Module,
    own: Tensors,
    rest: Tensors,
    inputs: Tree,
    targets: Tree,
    *,
    absent: Tensor | None,
    client: Pass | None = None,
    rule: Rule = PLAIN,
    forward: AbstractContextManager[Any] | None = None,
) -> tuple[list[Tensor | None], Tensor]:
    """The gradient of each model's loss by its own tensors, and the losses. All tensors have the models as first axis.

    `client` says what all clients have in common; each has its own forward pass and lacks its own classes.
    The forward pass runs within `forward` (autocast, which is not for backward passes).
    """

    every = client or Pass(module, None, "none", rule.options, 1.0, CLASSIFICATION, module)

    def loss(own: Tensors, rest: Tensors, x: Tree, y: Tree, lacks: Tensor | None) -> Tensor:
        # Attention in parts: fused kernels cannot be stacked, or do not see that there will be a backward pass.
        with sdpa_kernel(SDPBackend.MATH), forward or nullcontext():
            return loss_with({**own, **rest}, replace(every, absent=lacks), rule, x, y)

    axes = (0, 0, 0, 0, None if absent is None else 0)
    if not has_stacked_layers(module):
        found, losses = vmap(grad_and_value(loss), in_dims=axes)(own, rest, inputs, targets, absent)
        return [found[name] for name in own], losses
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in own.items()}
    losses = vmap(loss, in_dims=axes)(leaves, rest, inputs, targets, absent)
    return list(torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True)), losses.detach()


def loss_with(tensors: Tensors, client: Pass, rule: Rule, inputs: Tree, targets: Tree) -> Tensor:
    """The loss of a client whose module holds these tensors: also while the rule looks at the module itself."""
    named = {f"module.{name}": tensor for name, tensor in tensors.items()}
    found: Tensor = functional_call(_Loss(client, rule), named, (inputs, targets))
    return found


class _Loss(nn.Module):
    """The loss of a client as a function of the tensors of its module."""

    def __init__(self, client: Pass, rule: Rule) -> None:
        super().__init__()
        self.module, self.rule = client.module, rule
        self.client = replace(client, forward=self._answer)

    def forward(self, inputs: Tree, targets: Tree) -> Tensor:
        return loss_of(self.rule, self.client, inputs, targets)

    def _answer(self, *args: Any, **kwargs: Any) -> Any:
        # On a GPU autocast would do so for one model; a stacked loss is broken up into parts that it does not know.
        return in_single_precision(self.module(*args, **kwargs))


def client_channels_last(inputs: Tree) -> Tree:
    """Images [clients, samples, channels, height, width] with the channels of all clients last in memory."""
    return mapped(_client_channels_last, inputs)


def _client_channels_last(images: Tensor) -> Tensor:
    if images.dim() != 5:
        return images
    return images.permute(1, 3, 4, 0, 2).contiguous().permute(3, 0, 4, 1, 2)


def ignore_restriding() -> None:
    """Ignore, within `catch_warnings`, that pooling to one pixel restrides client by client, which moves nothing."""
    warnings.filterwarnings("ignore", message="There is a performance drop .* aten::as_strided_")
