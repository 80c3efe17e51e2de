"""Low-rank adapters in a model: which frozen weight each belongs to, and which tensors it is made of.

An adapter adds a product of two thin matrices to a frozen weight, W + s B A. Its rank is a width group like any other:
unit j is row j of A and column j of B. They are found by the names that `peft` gives them, so that its layers and ours
are alike here: a module with a `base_layer`, `lora_A`, `lora_B` and `scaling`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from fedwidth.errors import PlanError

FREEZE, DROP = "freeze", "drop"
OUTSIDE = (FREEZE, DROP)
"""What becomes of units that a client does not train: they stay in its forward pass, folded into the frozen weight, or
they are left out of it."""


@dataclass(frozen=True)
class Adapter:
    """One adapter of a model: W + scale B A."""

    module: str
    """The name of the module that takes the place of the layer."""
    weight: str
    """The frozen weight."""
    down: str
    """A [rank, inputs …]: its rows are the units."""
    up: str
    """B [outputs, rank …]: its columns are the units."""
    scale: float
    """What the product is multiplied by: the same at every rank, so that a unit means the same to every client."""
    outside: str = FREEZE
    """What becomes of units that a client does not train."""
    transposed: bool = False
    """Whether the weight is laid out [inputs, outputs], as in GPT-2."""

    def product(self, up: Tensor, down: Tensor, shape: tuple[int, ...]) -> Tensor:
        """What these units add to a weight of this shape: scale B A."""
        change = self.scale * (up.flatten(1) @ down.flatten(1))
        return (change.T if self.transposed else change).reshape(shape)


def find_adapters(model: nn.Module) -> tuple[Adapter, ...]:
    """The adapters of a model, in its order; kinds that no fold can stand for are refused."""
    found = []
    for name, module in model.named_modules():
        downs, ups, scales = (getattr(module, held, None) for held in ("lora_A", "lora_B", "scaling"))
        if len(getattr(module, "lora_embedding_A", ()) or ()):
            raise PlanError(f"'{name}' adapts an embedding; adapters of linear and convolution layers are supported")
        if not isinstance(downs, nn.ModuleDict) or not isinstance(ups, nn.ModuleDict) or not len(downs):
            continue
        if len(downs) > 1:
            raise PlanError(f"'{name}' has {len(downs)} adapters ({', '.join(downs)}); one at a time is supported")
        if len(getattr(module, "lora_magnitude_vector", ()) or ()):
            raise PlanError(f"'{name}' is adapted with DoRA, whose change is no sum of units; use plain LoRA")
        if getattr(module, "merged", False):
            raise PlanError(f"the adapter of '{name}' is merged into its weight; unmerge it first")
        (kind,) = downs
        if not isinstance(scales, Mapping):
            raise PlanError(f"'{name}' has lora_A and lora_B, but no scaling by the adapter's name")
        prefix = f"{name}." if name else ""
        found.append(
            Adapter(
                name,
                f"{prefix}base_layer.weight",
                f"{prefix}lora_A.{kind}.weight",
                f"{prefix}lora_B.{kind}.weight",
                float(scales[kind]),
                str(getattr(module, "outside", FREEZE)),
                bool(getattr(module, "fan_in_fan_out", False)),
            )
        )
    return tuple(found)


def untrained_parameters(model: nn.Module) -> frozenset[str]:
    """The parameters of a model that are never trained."""
    return frozenset(n for n, p in model.named_parameters(remove_duplicate=False) if not p.requires_grad)
