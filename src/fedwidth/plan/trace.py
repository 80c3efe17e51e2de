"""Find which axes of a model's tensors share a width, by running it on example inputs.

The forward passes run under two modes: one sees every operator and applies its rule to the axes (`rules`), the other
sees the Python calls and follows the integers in them (`follow`). `solve` then decides what may be sliced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.jit import ScriptModule
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from fedwidth.errors import OptionError, PlanError
from fedwidth.plan.attributes import described
from fedwidth.plan.finish import Finish
from fedwidth.plan.formulas import Equation, Held, Length, Number, atoms, evaluate, replace
from fedwidth.plan.isolation import batch_size
from fedwidth.plan.keep import keep_whole
from fedwidth.plan.naming import name_groups
from fedwidth.plan.node import UNREACHED, Node, find, freeze, leaves
from fedwidth.plan.plan import Plan
from fedwidth.plan.scales import find_scales
from fedwidth.plan.solve import solve
from fedwidth.plan.watching.passes import Watch
from fedwidth.plan.watching.recording import Recording

HEADS = ("within", "whole")


def trace(
    model: nn.Module,
    example_inputs: Any,
    *,
    heads: str = "within",
    output: Callable[[Any], Any] | None = None,
    keep: Sequence[str] = (),
    training: bool = True,
    whole: bool = False,
) -> Plan:
    """The plan of a model: its width groups, what is frozen and why.

    `example_inputs` is a tensor, a tuple of arguments or a dict of keyword arguments. Where a dimension is heads x
    head size (or groups x channels), heads="within" slices every head and "whole" drops whole heads. `output` picks
    from the model's output what must stay whole; by default every tensor in it does. Groups whose names are listed in
    `keep` (as printed, or patterns such as "layers.*") stay whole. The model runs in evaluation mode
    and in training mode; with training=False, for a model that cannot be trained on such inputs, in evaluation mode
    alone. A model with nothing to slice is refused, unless whole=True says that nobody is to hold less than all of it.

    >>> import torch
    >>> plan = trace(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.zeros(2, 4))
    >>> plan.groups["0"].size, plan.groups["0"].members
    (8, (('0.weight', 0), ('0.bias', 0), ('2.weight', 1)))
    """
    if heads not in HEADS:
        raise OptionError(f"heads must be 'within' or 'whole', not {heads!r}")
    if not batch_size(example_inputs):
        raise PlanError("the example inputs hold no sample: give at least one")
    tensors, tied = tensors_of(model)
    recording = Recording()
    recording.protect(tensors.values())
    for tensor in tensors.values():
        recording.put(tensor, [Node(size) for size in tensor.shape])
    passes = list(Watch(model, recording, output).passes(example_inputs, training=training))
    recording.keep_slots(model.parameters())
    for leaf in recording.constants.alone({tensor: recording.axes(tensor) for tensor in tensors.values()}):
        freeze(leaf, "multiplied with a constant alone")
    for node in (node for passed in passes for nodes in passed.outputs for node in nodes):
        freeze(node, "model output")
    axes = {name: [find(node) for node in recording.axes(tensor)] for name, tensor in tensors.items()}
    for nodes in axes.values():
        for leaf in (leaf for node in nodes for leaf in leaves(node) if not leaf.live):
            freeze(leaf, UNREACHED)
    values = passes[0].attributes
    equations = [*recording.constraints.equations, *described(model, axes)]
    known = [pair for pair in equations if _true_now(pair, values)]
    ordered = [node for nodes in axes.values() for node in nodes]
    solution = solve(ordered, known, values, heads=heads)
    names = name_groups(model, axes, solution.groups)
    if keep:
        keep_whole(keep, names, solution)
        solution = solve(ordered, known, values, heads=heads)
    scales = find_scales(model, recording.evidence, recording.constraints, values, set(solution.groups))
    for held, width in scales.rooted.items():
        solution.formulas.setdefault(held, Length(width))
    read = {
        atom
        for pair in recording.constraints.equations
        for side in pair
        for atom in atoms(side)
        if isinstance(atom, Held)
    }
    return Finish(model, axes, tied, values, solution, scales, names, read).plan(recording, passes, whole=whole)


def tensors_of(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Parameters and buffers by name, and for second names of a shared tensor the first."""
    if not isinstance(model, nn.Module):
        raise PlanError(f"expected a torch.nn.Module, not {model!r}")
    if isinstance(model, (ScriptModule, nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise PlanError(f"a {type(model).__name__} hides its modules; use the model it was made of")
    names = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    first: dict[int, str] = {}
    tied = {}
    for name, tensor in names.items():
        if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)):
            raise PlanError(f"'{name}' has no shape yet; run the model once before tracing it")
        if first.setdefault(id(tensor), name) != name:
            tied[name] = first[id(tensor)]
    return names, tied


def _true_now(equation: Equation, values: Mapping[Held, int]) -> bool:
    """Whether it holds at full width: descriptions of unusual layers (an LSTM with projections) need not."""
    if any(atom not in values for side in equation for atom in atoms(side) if isinstance(atom, Held)):
        return False  # attributes of value 1 are not followed
    left, right = (
        evaluate(
            replace(side, lambda atom: Number(values[atom]) if isinstance(atom, Held) else atom),
            lambda axis: find(axis).size,
        )
        for side in equation
    )
    return left == right
