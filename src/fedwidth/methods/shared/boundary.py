"""A model in two halves: what comes before a boundary, the output of one of its layers, and what comes after it.

The boundary is the output of a linear or convolution layer, which the plan names. It is one only if nothing behind it
looks at the input by another way; that is tried, not assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedwidth.core.narrow import copy_model
from fedwidth.data.trees import leaves, mapped
from fedwidth.errors import OptionError
from fedwidth.methods.definition import Beginning
from fedwidth.plan.axis import groups_of
from fedwidth.plan.layers import plain_layers
from fedwidth.plan.plan import Plan
from fedwidth.plan.trace import tensors_of

Answer = Callable[[nn.Module, Any], Any]


class Given(nn.Module):
    """Stands for a layer whose output is given, whatever comes in."""

    features: Tensor

    def forward(self, *_: Any, **__: Any) -> Tensor:
        """The features that were given."""
        return self.features


class Upper:
    """The upper half of a model: it takes features, the output of the boundary."""

    def __init__(self, network: nn.Module, boundary: str, example: Any, answer: Answer) -> None:
        self.network, self.example, self.answer = network, example, answer
        self.given = Given()
        network.set_submodule(boundary, self.given)

    def __call__(self, features: Tensor) -> Any:
        """The model's answer where these features are the output of the boundary."""
        # PyTorch (2.13, on processors) crashes in the backward pass of a group norm over channels that lie last, where
        # its input needs no gradient, as features do not.
        self.given.features = features.contiguous()
        # What comes before the boundary computes on any samples of the right shape, and is not looked at.
        inputs = mapped(lambda tensor: tensor[:1].expand(len(features), *tensor.shape[1:]), self.example)
        return self.answer(self.network, inputs)


def boundary_of(model: nn.Module, layers: int) -> str:
    """The name of the layer whose output is the boundary: the last of the first so many."""
    names = list(plain_layers(model, tensors_of(model)[1]))
    return names[min(layers, len(names)) - 1].removesuffix(".weight")


def lower_counts(plan: Plan, layers: int, counts: Mapping[str, int]) -> dict[str, int]:
    """So many units of every group, but all of those that the first layers take in or give out.

    Features have one size for all, and so has what comes before the boundary, an embedding too, which is averaged.
    """
    axes = [axis for name in list(plan.layers)[:layers] for axis in plan.axes[name]]
    lower = {group for axis in axes for group in groups_of(axis)}
    for _ in plan.couplings:  # a group that is a multiple of another goes with it
        for pair in ({coupling.whole, coupling.part} for coupling in plan.couplings):
            lower |= pair if lower & pair else set()
    return {name: plan.groups[name].size if name in lower else count for name, count in counts.items()}


def check_boundary(beginning: Beginning, layers: int, title: str) -> None:
    """Refuse a model in which more than the boundary's output reaches what comes after it, or nothing comes after."""
    assert beginning.model is not None
    model, example = copy_model(beginning.model).eval(), beginning.example
    found = plain_layers(model, tensors_of(model)[1])
    if layers >= len(found):
        raise OptionError(
            f"{title} splits the model after layer {layers} of {len(found)}, which leaves the server nothing to train"
        )
    name = boundary_of(model, layers)
    features = lower_half(model, name, lambda: beginning.answer(model, example))[1]
    upper = Upper(model, name, example, beginning.answer)
    with torch.no_grad():
        one = upper(features)
        upper.example = mapped(lambda tensor: torch.zeros_like(tensor), example)
        other = upper(features)
    if any(not torch.equal(a, b) for a, b in zip(leaves(one), leaves(other), strict=True)):
        raise OptionError(
            f"{title} splits the model after '{name}', but what comes after it looks at more than its output:"
            " choose another number of layers"
        )


def check_beginnings(beginning: Beginning, layers: int, title: str) -> None:
    """Refuse an architecture that does not begin as the run's model does: features and weights before the boundary."""
    assert beginning.model is not None
    shapes = _lower_shapes(copy_model(beginning.model), beginning, layers)
    for one in dict.fromkeys(beginning.architectures.values()):
        device = next(beginning.model.parameters()).device
        own = _lower_shapes(one.filled().to(device), beginning, layers)
        if own != shapes:
            raise OptionError(
                f"{title} splits models after layer {layers}, before which all must be alike: '{one.name}' has tensors"
                f" {own[1:]} and features {own[0]} there, the run's model {shapes[1:]} and {shapes[0]}"
            )


def _lower_shapes(network: nn.Module, beginning: Beginning, layers: int) -> list[list[int]]:
    """The shape of a sample's features, and of the tensors that come before the boundary."""
    network.eval()
    name = boundary_of(network, layers)
    met, features, _ = lower_half(network, name, lambda: beginning.answer(network, beginning.example))
    own = dict([*network.named_parameters(), *network.named_buffers()])
    return [list(features.shape[1:]), *(list(own[name].shape) for name in met)]


def lower_half(network: nn.Module, boundary: str, run: Callable[[], Any]) -> tuple[list[str], Tensor, Any]:
    """The tensors that a pass meets up to the boundary, by name, the boundary's output, and what the pass returns."""
    met: list[str] = []
    features: list[Tensor] = []

    def note(prefix: str, module: nn.Module) -> Callable[..., None]:
        own = [*module.named_parameters(prefix, recurse=False), *module.named_buffers(prefix, recurse=False)]

        def hook(_: nn.Module, __: Any, output: Any) -> None:
            if not features:
                met.extend(name for name, _ in own)
            if prefix == boundary:
                features.append(output)

        return hook

    handles = [module.register_forward_hook(note(name, module)) for name, module in network.named_modules()]
    try:
        with torch.no_grad():
            answer = run()
    finally:
        for handle in handles:
            handle.remove()
    if len(features) != 1:
        raise OptionError(f"'{boundary}' is used {len(features)} times in a pass, so its output is no boundary")
    return met, features[0], answer
