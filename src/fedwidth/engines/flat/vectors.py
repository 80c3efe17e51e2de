"""The vectors a captured or stacked step works on: one [n], or one for each of several clients [clients, n]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedwidth.engines.flat.tensor_layout import TensorLayout
from fedwidth.errors import OptionError
from fedwidth.models import StaticBatchNorm2d
from fedwidth.settings import TrainingSettings
from fedwidth.training.rule import Rule
from fedwidth.training.weights import Number, Weights


def make_vectors(
    shape: tuple[int, ...],
    sub: TensorLayout,
    module: nn.Module,
    rule: Rule,
    settings: TrainingSettings,
    *,
    device: torch.device,
) -> Weights:
    """New vectors for sub-models of one layout, which take turns in a module.

    All keep their addresses from then on, so that a step on them can be captured.
    """

    def zeros(*sizes: int) -> Tensor:
        return torch.zeros(sizes, dtype=sub.dtype, device=device)

    each = (shape[0], 1) if len(shape) == 2 else ()
    names = trained_names(module)
    weights = Weights(
        [zeros(*shape)],
        [zeros(*shape)],
        scratch=[zeros(*shape)],
        start=[zeros(*shape)] if rule.keeps_start else [],
        gathered=[zeros(*shape)] if rule.probes else [],
        steps=zeros(*each),
        rate=zeros(*each),
        learning_rate=zeros(*each),
        local_steps=zeros(*each),
        share=zeros(*each),
        rows=len(shape) == 2,
        trainable=mask_of(sub, names, device),
        decaying=mask_of(sub, decaying_names(module), device),
        elements=sub.mark(names, gaps=0.0).to(device) if rule.keeps_start else None,
    )
    weights.make_moments(settings)
    return weights


def trained_names(module: nn.Module) -> list[str]:
    """The names of a module's parameters that are trained."""
    return [name for name, parameter in module.named_parameters() if parameter.requires_grad]


def decaying_names(module: nn.Module) -> list[str]:
    """The names of those that weight decay moves."""
    return [name for name in trained_names(module) if getattr(module.get_parameter(name), "decays", True)]


def mask_of(sub: TensorLayout, names: Sequence[str], device: torch.device) -> Tensor | None:
    """1 for the elements of these tensors and for gaps, 0 for others; None where all are 1."""
    marked = sub.mark(names)
    return None if bool(marked.all()) else marked.to(device)


def changed_by_steps(weights: Weights) -> list[Tensor]:
    """The tensors that a step changes and that the next step reads."""
    steps = [weights.steps] if isinstance(weights.steps, Tensor) else []
    return [*weights.values, *weights.first, *weights.second, *weights.gathered, *steps]


def changed_by_training(model: nn.Module, names: Sequence[str]) -> list[str]:
    """Those of the named tensors that training may change: all but the statistics of static batch norms."""
    static = [name for name, module in model.named_modules() if isinstance(module, StaticBatchNorm2d)]
    return [name for name in names if name.rpartition(".")[0] not in static]


def reset(weights: Weights, *, gathered: bool = True) -> None:
    """Set an optimiser's moments to 0, since every client starts with a fresh one, and the gradients as well.

    Nothing writes to a gradient's gaps, where clipping by a norm that is no number would leave one.
    """
    assert isinstance(weights.steps, Tensor)
    gradients = [gradient for gradient in weights.gradients if gradient is not None]
    own = weights.gathered if gathered else []
    torch._foreach_zero_([*gradients, *weights.first, *weights.second, *own, weights.steps])


def fill(number: Number, value: float) -> None:
    """Write a value where a captured step reads that number."""
    assert isinstance(number, Tensor)
    number.fill_(value)


def start_from(weights: Weights, values: Tensor, sent: Sequence[Mapping[str, Tensor]]) -> None:
    """Let the clients begin with these values ([n], or the first rows) and what each was sent beside them."""
    rows = slice(len(values))
    for held in (weights.values[0], *weights.start):
        (held[rows] if weights.rows else held).copy_(values)
    if not sent and not weights.sent:
        return
    names = set(sent[0]) if sent else set()
    if any(set(each) != names for each in sent) or (weights.sent and set(weights.sent) != names):
        raise OptionError("a local rule must send every client the same names in every round")
    for name in sent[0] if sent else ():
        given = [each[name] for each in sent]
        if name not in weights.sent:  # the first time, and before the step is captured
            weights.sent[name] = [_room_for(given[0], weights)]
        held = weights.sent[name][0]
        if weights.rows:
            held[rows].copy_(torch.stack([each.reshape(-1) for each in given]))
        else:
            held.copy_(given[0])


def _room_for(example: Tensor, weights: Weights) -> Tensor:
    """Zeros with room for what every client is sent: a vector, or a number."""
    value = weights.values[0]
    if not weights.rows:
        return torch.zeros_like(example)
    return value.new_zeros(len(value), example.numel())
