"""From the nodes of a finished trace to the immutable plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from torch import nn

from fedwidth.errors import PlanError
from fedwidth.plan import axis as finished
from fedwidth.plan.adapters import find_adapters, untrained_parameters
from fedwidth.plan.attributes import Attribute, stated
from fedwidth.plan.axis import Axis, Concat, Fixed, Product, Units
from fedwidth.plan.formulas import Formula, Held, Length, replace
from fedwidth.plan.layers import plain_layers
from fedwidth.plan.multiples import find_multiples
from fedwidth.plan.node import LEAF, PRODUCT, Node, find
from fedwidth.plan.plan import Coupling, Group, Plan
from fedwidth.plan.scales import Scales
from fedwidth.plan.solve import Solution, groups_in
from fedwidth.plan.watching.passes import Passed
from fedwidth.plan.watching.recording import Recording
from fedwidth.plan.work import Terms, terms


class Finish:
    """Turns the nodes of a finished trace into the immutable plan."""

    def __init__(
        self,
        model: nn.Module,
        axes: dict[str, list[Node]],
        tied: dict[str, str],
        values: dict[Held, int],
        solution: Solution,
        scales: Scales,
        names: Mapping[Node, str],
        read: Collection[Held] = (),
    ) -> None:
        self.model, self.axes, self.tied, self.values, self.solution = model, axes, tied, values, solution
        self.scales, self.read = scales, read
        self.parameters = frozenset(dict(model.named_parameters(remove_duplicate=False)))
        self.names = {leaf: name for leaf, name in names.items() if leaf in set(solution.groups)}

    def plan(self, recording: Recording, passes: Sequence[Passed], *, whole: bool) -> Plan:
        """The plan of what the passes showed, the first of them in evaluation mode; `whole` allows that nothing is
        sliced."""
        axes = {name: tuple(self.axis(node) for node in nodes) for name, nodes in self.axes.items()}
        members: dict[str, list[tuple[str, int]]] = {name: [] for name in self.names.values()}
        for name, tensor_axes in axes.items():
            for dim, tensor_axis in enumerate(tensor_axes):
                for group in finished.groups_of(tensor_axis):
                    members[group].append((name, dim))
        adapters = find_adapters(self.model)
        # Where adapters have rank 1 and widths are kept whole, adapters are all that is trained.
        if not members and not adapters and not whole:
            several = "; it returns several tensors, and all of them stay whole: output= says which of them counts"
            raise PlanError(
                f"the model has nothing to slice: {_why(axes)}{several if len(passes[0].outputs) > 1 else ''}"
            )
        multiples = find_multiples(recording.multiples, self.names)
        return Plan(
            axes=axes,
            groups={
                name: Group(name, leaf.size, tuple(members[name]), multiples.get(leaf, 1))
                for leaf, name in self.names.items()
            },
            tied=self.tied,
            parameters=self.parameters,
            optional=_unsaved_buffers(self.model) | {name for name in self.scales.widths if isinstance(name, str)},
            attributes=tuple(self.attributes(axes)),
            left_alone=tuple(self.scales.left_alone),
            couplings=tuple(
                Coupling(self.names[r.whole], r.factor, self.names[r.part]) for r in self.solution.relations
            ),
            label_axes=self.label_axes(recording, passes[0].outputs),
            layers=plain_layers(self.model, self.tied),
            unknown_operators=dict(recording.unknown),
            looks_at_values=recording.looked,
            training_passes=len(passes) - 1,
            work=recording.tally.work(self.axis, *self.bytes(), passes[0].samples, passes[-1].samples),
            adapters=adapters,
            untrained=untrained_parameters(self.model) if adapters else frozenset(),
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

    def bytes(self) -> tuple[Terms, Terms]:
        """The bytes of parameters and of buffers at any width, tied ones once."""
        own = dict(self.model.named_parameters()), dict(self.model.named_buffers())
        weights, buffers = (
            terms((tensor.element_size(), map(self.axis, self.axes[name])) for name, tensor in tensors.items())
            for tensors in own
        )
        return weights, buffers

    def formula(self, formula: Formula) -> Formula:
        """The formula over the plan's axes in place of nodes."""
        return replace(formula, lambda atom: Length(self.axis(atom.axis)) if isinstance(atom, Length) else atom)

    def attributes(self, axes: Mapping[str, tuple[Axis, ...]]) -> list[Attribute]:
        """The module attributes that follow the width, in the order of the modules."""
        groups = set(self.solution.groups)
        found = [
            Attribute(held.module, held.name, held.place, self.values[held], self.formula(formula))
            for held, formula in self.solution.formulas.items()
            if groups_in(formula, groups)
        ]
        for source, (node, power, value) in self.scales.widths.items():
            formula, buffer = self.formula(Length(node)), isinstance(source, str)
            path, name = source.rpartition(".")[::2] if isinstance(source, str) else (source.module, source.name)
            found.append(Attribute(path, name, None, value, formula, power, buffer))
        known = {*self.read, *self.solution.formulas, *(Held(a.module, a.name, a.place) for a in found)}
        for held, value, formula in stated(self.model, axes, known):
            found.append(Attribute(held.module, held.name, None, value, formula))
        order = {name: place for place, (name, _) in enumerate(self.model.named_modules())}
        return sorted(found, key=lambda attribute: (order[attribute.module], attribute.name))

    def label_axes(self, recording: Recording, outputs: Sequence[list[Node]]) -> tuple[tuple[str, int], ...]:
        """Where the classes of the first output are: tensors that share its class axis, and input vocabularies."""
        of_weights = {node for nodes in self.axes.values() for node in nodes if node.size > 1}
        for axes in outputs:
            nodes = [find(node) for node in axes]
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
