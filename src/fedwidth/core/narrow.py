"""Real small modules: `narrow` cuts a working `nn.Module` of a sub-model's size out of a large one.

The shapes and the integers in a module (head counts, split sizes) depend only on how many units each group keeps, so
`skeleton` builds a module of that size once and many sub-models can take turns in it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from fedwidth.core.index import Index
from fedwidth.core.submodel import check_index, folded, take
from fedwidth.errors import PlanError
from fedwidth.plan.attributes import Attribute
from fedwidth.plan.check import check_fit
from fedwidth.plan.plan import Plan
from fedwidth.plan.trace import tensors_of
from fedwidth.plan.watching.held import holder_of


def narrow(model: nn.Module, plan: Plan, index: Index) -> nn.Module:
    """A working module of the sub-model's width that holds its weights; `model` is not changed.

    >>> from fedwidth import Index, trace
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> plan = trace(model, torch.zeros(1, 4))
    >>> small = narrow(model, plan, Index.of_units(plan, {"0": [1, 6]}))
    >>> small
    Sequential(
      (0): Linear(in_features=4, out_features=2, bias=True)
      (1): ReLU()
      (2): Linear(in_features=2, out_features=3, bias=True)
    )
    >>> torch.equal(small[0].bias, model[0].bias[[1, 6]])
    True
    """
    check_index(plan, index)
    small = skeleton(model, plan, index.counts)
    with torch.no_grad():
        full = folded(tensors_of(model)[0], index)
        for name, tensor in tensors_of(small)[0].items():
            if name not in plan.tied:
                tensor.copy_(take(full[name].detach(), index, name))
    return with_buffers(small, plan)


def with_buffers(small: nn.Module, plan: Plan) -> nn.Module:
    """The same module; what `skeleton` made a plain attribute, because no state may overwrite it, is a buffer again."""
    for attribute in plan.attributes:
        module = small.get_submodule(attribute.module)
        if attribute.buffer and attribute.name not in module._buffers:
            unsaved = attribute.name in module._non_persistent_buffers_set
            module.register_buffer(attribute.name, module.__dict__.pop(attribute.name), persistent=not unsaved)
    return small


def skeleton(
    model: nn.Module, plan: Plan, width: Mapping[str, int] | float | Fraction, *, rounding: str = "floor"
) -> nn.Module:
    """A module of a width, its tensors not yet filled: `load_state_dict` takes what `extract` has cut.

    The width is a capacity, or says how many units each group keeps; groups that it does not name stay whole.

    >>> from fedwidth import extract, method, state_of, trace
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> plan = trace(model, torch.zeros(1, 4))
    >>> index = method("fedrolex").select(plan, capacity=0.25, round=3)
    >>> skeleton(model, plan, 0.25).load_state_dict(extract(state_of(model), plan, index))
    <All keys matched successfully>
    >>> skeleton(model, plan, {"0": 5})[2]
    Linear(in_features=5, out_features=3, bias=True)

    Ties, dtypes, devices, `requires_grad` and training flags are those of `model`, whose weights are never copied. A
    buffer that holds a root of a width is a plain attribute with its narrow value here, which no state overwrites.
    """
    counts = width if isinstance(width, Mapping) else plan.counts(width, rounding)
    check_counts(plan, counts)
    full = check_fit(plan, model)
    shapes = plan.narrow_shapes(counts)
    memo: dict[int, object] = {}
    for name, tensor in full.items():
        memo.setdefault(id(tensor), _blank(tensor, shapes[name]))
    for tensor in computed_in(model):  # deepcopy refuses what autograd computed
        memo.setdefault(id(tensor), tensor.detach())
    small = copy.deepcopy(model, memo)
    modules = dict(small.named_modules())
    for attribute in plan.attributes:
        rewrite = _rewrite_buffer if attribute.buffer else _rewrite
        rewrite(modules, attribute, attribute.at(counts))
    for name, module in modules.items():
        if isinstance(module, nn.RNNBase):
            _check_projection(name, module)
            module.flatten_parameters()  # cuDNN wants them in one piece
    return small


def check_projections(
    model: nn.Module, plan: Plan, capacities: Iterable[float | Fraction], rounding: str = "floor"
) -> None:
    """Refuse capacities at which a recurrent layer could not project what it gives."""
    if any(isinstance(module, nn.RNNBase) and module.proj_size for module in model.modules()):
        for capacity in capacities:
            skeleton(model, plan, capacity, rounding=rounding)


def _check_projection(name: str, layer: nn.RNNBase) -> None:
    if layer.proj_size and layer.proj_size >= layer.hidden_size:
        raise PlanError(
            f"the {type(layer).__name__} '{name}' would have proj_size {layer.proj_size} and hidden_size"
            f" {layer.hidden_size} in a model this narrow, and PyTorch needs proj_size < hidden_size: take wider"
            " capacities, or keep a width group whole"
        )


def copy_model(model: nn.Module) -> nn.Module:
    """A copy of the model that shares no tensor with it, also of one that keeps what a forward pass computed.

    `copy.deepcopy` alone refuses such tensors. The older weight norm keeps the weight it computed, and a recurrent
    layer a list of its weights, of which a parametrised one is computed; the next forward pass computes them anew.
    """
    return copy.deepcopy(model, {id(tensor): tensor.detach().clone() for tensor in computed_in(model)})


def computed_in(model: nn.Module) -> Iterator[Tensor]:
    """The tensors that autograd computed among what the model's modules hold, in lists and dictionaries too."""
    waiting: list[Any] = [vars(module) for module in model.modules()]
    seen = set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:  # containers may hold themselves
            continue
        seen.add(id(value))
        if isinstance(value, Tensor) and not value.is_leaf:
            yield value
        elif isinstance(value, Mapping):
            waiting.extend(value.values())
        elif isinstance(value, (list, tuple, set)):
            waiting.extend(value)


def check_counts(plan: Plan, counts: Mapping[str, int]) -> None:
    """Raise `PlanError` unless every count is possible and every coupling holds."""
    for name, count in counts.items():
        if name not in plan.groups:
            raise PlanError(f"the plan has no width group '{name}'; it has: {', '.join(plan.groups)}")
        if not 1 <= count <= plan.groups[name].size:
            raise PlanError(f"group '{name}' can keep 1 to {plan.groups[name].size} units, not {count}")
        if count % plan.groups[name].multiple:
            raise PlanError(f"group '{name}' can keep multiples of {plan.groups[name].multiple} units, not {count}")
    for coupling in plan.couplings:
        whole = counts.get(coupling.whole, plan.groups[coupling.whole].size)
        part = counts.get(coupling.part, plan.groups[coupling.part].size)
        if whole != coupling.factor * part:
            raise PlanError(
                f"group '{coupling.whole}' must keep {coupling.factor} times as many units as '{coupling.part}', "
                f"not {whole} and {part}"
            )


def fits_plan(model: nn.Module, plan: Plan) -> bool:
    """Whether the model has the tensors of the plan in their full shapes, and the numbers that follow the width."""
    modules = dict(model.named_modules())
    try:
        check_fit(plan, model)
        for attribute in plan.attributes:
            if not attribute.buffer:
                _fields(modules, attribute)
    except PlanError:
        return False
    return True


def _blank(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A tensor without values for a narrow copy of another; a parameter if the other is one."""
    empty = torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
    result = nn.Parameter(empty, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    result.__dict__.update(tensor.__dict__)  # marks some libraries put on parameters
    return result


def _fields(modules: Mapping[str, nn.Module], attribute: Attribute) -> tuple[dict[str, Any], str]:
    """The fields among which an attribute is held, and its name there; `PlanError` unless its value is the plan's."""
    module = modules.get(attribute.module)
    fields, name = holder_of(module, attribute.name) if module is not None else (None, "")
    if fields is None or name not in fields:
        raise PlanError(f"the model does not fit the plan: it has no attribute '{attribute}'")
    held = fields[name] if attribute.place is None else fields[name][attribute.place]
    if held != attribute.value:
        raise PlanError(f"the model does not fit the plan: '{attribute}' is not {attribute.value}")
    return fields, name


def _rewrite(modules: Mapping[str, nn.Module], attribute: Attribute, value: int | float) -> None:
    fields, name = _fields(modules, attribute)
    if attribute.place is not None:
        items = list(fields[name])
        items[attribute.place] = value
        fields[name] = type(fields[name])(items)
    else:
        fields[name] = value


def _rewrite_buffer(modules: Mapping[str, nn.Module], attribute: Attribute, value: int | float) -> None:
    module = modules[attribute.module]
    blank = module._buffers[attribute.name]
    assert blank is not None
    if value == attribute.value:
        blank.fill_(value)
        return
    del module._buffers[attribute.name]
    device = "cpu" if blank.is_meta else blank.device
    module.__dict__[attribute.name] = torch.tensor(value, dtype=blank.dtype, device=device)
