"""Find which axes of a model's tensors share a width, by running it once on example inputs.

The forward pass runs under two modes: one sees every operator and applies its rule to the axes (`rules`), the other
sees the Python calls and follows the integers in them (`follow`). `solve` then decides what may be sliced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.jit import ScriptModule
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from fedwidth.errors import OptionError, PlanError
from fedwidth.plan import axis as finished
from fedwidth.plan.attributes import Attribute, described, rooted_width, roots
from fedwidth.plan.axis import Axis, Concat, Fixed, Product, Units
from fedwidth.plan.follow import SizeMode, follow_attributes
from fedwidth.plan.formulas import Equation, Formula, Held, Length, Number, atoms, evaluate, replace
from fedwidth.plan.isolation import call, picked, plain_operators, untouched
from fedwidth.plan.naming import name_groups
from fedwidth.plan.node import LEAF, PRODUCT, Node, find, freeze, leaves
from fedwidth.plan.plan import Coupling, Group, Plan
from fedwidth.plan.recording import AxisMode, Recording, tensors_in
from fedwidth.plan.rules import handler
from fedwidth.plan.solve import Solution, groups_in, solve
from fedwidth.plan.statements import STATEMENTS

HEADS = ("within", "whole")


def trace(
    model: nn.Module,
    example_inputs: Any,
    *,
    heads: str = "within",
    output: Callable[[Any], Any] | None = None,
) -> Plan:
    """The plan of a model: its width groups, what is frozen and why.

    `example_inputs` is a tensor, a tuple of arguments or a dict of keyword arguments. Where a dimension is heads x
    head size (or groups x channels), heads="within" slices every head and "whole" drops whole heads. `output` picks
    from the model's output what must stay whole; by default every tensor in it does.

    >>> import torch
    >>> plan = trace(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.zeros(2, 4))
    >>> plan.groups["0"].size, plan.groups["0"].members
    (8, (('0.weight', 0), ('0.bias', 0), ('2.weight', 1)))
    """
    if heads not in HEADS:
        raise OptionError(f"heads must be 'within' or 'whole', not {heads!r}")
    names, tied = tensors_of(model)
    recording = Recording()
    recording.protect([*names.values(), *tensors_in(example_inputs)])
    for tensor in names.values():
        recording.put(tensor, [Node(size) for size in tensor.shape])
    for tensor in tensors_in(example_inputs):
        recording.put_fixed(tensor, "model input")
    values, result = _run(model, example_inputs, recording)
    outputs = list(tensors_in(picked(result, output)))
    if not outputs:
        raise PlanError("the model's output holds no tensor; pass output= to say which part of it counts")
    for tensor in outputs:
        for node in recording.axes(tensor):
            freeze(node, "model output")
    axes = {name: [find(node) for node in recording.axes(tensor)] for name, tensor in names.items()}
    for nodes in axes.values():
        for leaf in (leaf for node in nodes for leaf in leaves(node) if not leaf.live):
            freeze(leaf, "not used in the forward pass")
    ordered = [node for nodes in axes.values() for node in nodes]
    equations = [*recording.constraints.equations, *described(model, axes)]
    known = [pair for pair in equations if _true_now(pair, values)]
    solution = solve(ordered, known, values, heads=heads)
    for held in recording.constraints.rooted:
        if held not in solution.formulas and (width := rooted_width(held, values[held], axes)) is not None:
            solution.formulas[held] = width
    return _Finish(model, axes, tied, values, solution).plan(recording, outputs)


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


def _run(model: nn.Module, inputs: Any, recording: Recording) -> tuple[dict[Held, int], Any]:
    """One forward pass; the model is left as it was."""
    with untouched(model):
        try:
            with plain_operators(model):
                values = follow_attributes(model, recording)
                with AxisMode(recording, handler), SizeMode(recording, STATEMENTS):
                    result = call(model, inputs)
        except Exception as error:
            raise PlanError(f"the model failed on the example inputs: {error}") from error
        finally:
            recording.restore()
    return values, result


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


class _Finish:
    """Turns the nodes of a finished trace into the immutable plan."""

    def __init__(
        self,
        model: nn.Module,
        axes: dict[str, list[Node]],
        tied: dict[str, str],
        values: dict[Held, int],
        solution: Solution,
    ) -> None:
        self.model, self.axes, self.tied, self.values, self.solution = model, axes, tied, values, solution
        self.parameters = frozenset(dict(model.named_parameters(remove_duplicate=False)))
        self.names = name_groups(model, axes, solution.groups, self.parameters)

    def plan(self, recording: Recording, outputs: list[Tensor]) -> Plan:
        axes = {name: tuple(self.axis(node) for node in nodes) for name, nodes in self.axes.items()}
        members: dict[str, list[tuple[str, int]]] = {name: [] for name in self.names.values()}
        for name, tensor_axes in axes.items():
            for dim, tensor_axis in enumerate(tensor_axes):
                for group in finished.groups_of(tensor_axis):
                    members[group].append((name, dim))
        if not members:
            raise PlanError(f"the model has nothing to slice: {_why(axes)}")
        return Plan(
            axes=axes,
            groups={name: Group(name, leaf.size, tuple(members[name])) for leaf, name in self.names.items()},
            tied=self.tied,
            parameters=self.parameters,
            optional=_unsaved_buffers(self.model),
            attributes=tuple(self.attributes()),
            couplings=tuple(
                Coupling(self.names[r.whole], r.factor, self.names[r.part]) for r in self.solution.relations
            ),
            label_axes=self.label_axes(recording, outputs),
            unknown_operators=dict(recording.unknown),
            looks_at_values=recording.looked,
        )

    def axis(self, node: Node) -> Axis:
        """The immutable form; parts none of which is sliced become one."""
        node = find(node)
        if node.kind == LEAF:
            if node in self.names:
                return Units(self.names[node], node.size)
            return Fixed(node.size, node.reason or self.solution.held_back.get(node, ""))
        parts = tuple(self.axis(part) for part in node.parts)
        if all(isinstance(part, Fixed) for part in parts):
            reason = next(leaf.reason for leaf in finished.leaves(parts[0]) if isinstance(leaf, Fixed))
            return Fixed(node.size, reason)
        return Product(parts) if node.kind == PRODUCT else Concat(parts)

    def formula(self, formula: Formula) -> Formula:
        return replace(formula, lambda atom: Length(self.axis(atom.axis)) if isinstance(atom, Length) else atom)

    def attributes(self) -> list[Attribute]:
        groups = set(self.solution.groups)
        found = [
            Attribute(held.module, held.name, held.place, self.values[held], self.formula(formula))
            for held, formula in self.solution.formulas.items()
            if groups_in(formula, groups)
        ]
        for held, value, formula, power in roots(self.model, self.axes, self.solution, self.values):
            found.append(Attribute(held.module, held.name, None, value, self.formula(formula), power))
        order = {name: place for place, (name, _) in enumerate(self.model.named_modules())}
        return sorted(found, key=lambda attribute: (order[attribute.module], attribute.name))

    def label_axes(self, recording: Recording, outputs: list[Tensor]) -> tuple[tuple[str, int], ...]:
        """Where the classes of the first output are: tensors that share its class axis, and input vocabularies."""
        of_weights = {node for nodes in self.axes.values() for node in nodes if node.size > 1}
        for tensor in outputs:
            nodes = [find(node) for node in recording.axes(tensor)]
            # [batch, class], [batch, position, class] or [batch, class, height, width]
            usual = nodes[1:2] if len(nodes) > 3 else nodes[-1:]
            classes = next((node for node in [*usual, *nodes] if node in of_weights), None)
            if classes is None:
                continue
            same = {classes}
            if len(nodes) == 3:  # a language model: the words it reads are the words it predicts
                same |= {find(node) for node in recording.vocabularies if find(node).size == classes.size}
            return tuple((n, dim) for n, own in self.axes.items() for dim, node in enumerate(own) if node in same)
        return ()


def _unsaved_buffers(model: nn.Module) -> frozenset[str]:
    return frozenset(
        f"{path}.{name}" if path else name
        for path, module in model.named_modules(remove_duplicate=False)
        for name in module._non_persistent_buffers_set
    )


def _why(axes: Mapping[str, tuple[Axis, ...]]) -> str:
    fixed = (leaf for nodes in axes.values() for node in nodes for leaf in finished.leaves(node))
    reasons = Counter(leaf.reason for leaf in fixed if isinstance(leaf, Fixed))
    if not reasons:
        return "it has no parameters"
    return "; ".join(f"{count} {'axis' if count == 1 else 'axes'}: {reason}" for reason, count in reasons.most_common())
