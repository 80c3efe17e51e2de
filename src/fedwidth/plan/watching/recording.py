"""What one forward pass has shown so far: the axes of every tensor met, and what the sizes must obey."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedwidth.plan.formulas import Constraints, Length
from fedwidth.plan.node import Node, Unaligned, factors, find, freeze, leaves
from fedwidth.plan.restructure import unify
from fedwidth.plan.watching.constants import Constants
from fedwidth.plan.watching.evidence import Evidence
from fedwidth.plan.watching.storage import pointer_of, storage_of
from fedwidth.plan.work import Tally


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in nested mappings, sequences and dataclasses; other objects (caches) are not looked into."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for entry in fields(value):
            yield from tensors_in(getattr(value, entry.name))


class Recording:
    """Axes by tensor. Every tensor met is kept alive, so that its identity stays its key."""

    def __init__(self) -> None:
        self._axes: dict[int, list[Node]] = {}
        self._alive: list[Tensor] = []
        self._deferred: dict[int, Callable[[], object]] = {}
        self._constants: dict[int, list[tuple[Node, Node]]] = {}
        self._protected: dict[int, list[Tensor]] = {}
        self._overwritten: list[tuple[Tensor, Tensor]] = []
        self._held: set[int] = set()
        self._cuts: dict[int, list[tuple[Node, Node]]] = {}
        self._written: set[tuple[Node, Node]] = set()
        self.constraints = Constraints()
        self.evidence = Evidence()
        self.constants = Constants(self.shape)
        self.tally = Tally()
        self.unknown: dict[str, int] = {}
        self.vocabularies: list[Node] = []
        self.multiples: list[tuple[Node, int]] = []
        """Axes that an operator takes only with a multiple of so many units."""
        self.looked = False
        """Whether the code asked for a value."""
        self.sized = False
        """Whether the Python call under way states the sizes of its result, so that its splits are accounted for."""

    def axes(self, tensor: Tensor) -> list[Node]:
        """One node per dimension, for a reader of the tensor's values."""
        if self._deferred and (action := self._deferred.pop(id(tensor), None)):
            action()
        return self.shape(tensor)

    def shape(self, tensor: Tensor) -> list[Node]:
        """One node per dimension; a tensor nobody announced (a literal in the code) is fixed."""
        if id(tensor) not in self._axes:
            self.put_fixed(tensor, "constant in the code")
        return self._axes[id(tensor)]

    def knows(self, tensor: Tensor) -> bool:
        """Whether its axes were put already."""
        return id(tensor) in self._axes

    def forget(self, tensor: Tensor) -> list[Node]:
        """Its axes, which are to be put anew."""
        axes = self.axes(tensor)
        del self._axes[id(tensor)]
        return axes

    def put(self, tensor: Tensor, axes: Sequence[Node]) -> None:
        """Say what the dimensions of a new tensor are."""
        if len(axes) != tensor.dim() or any(find(a).size != n for a, n in zip(axes, tensor.shape, strict=True)):
            raise Unaligned
        self._axes[id(tensor)] = list(axes)
        self._alive.append(tensor)
        self.tally.lay(tensor, axes)

    def put_fixed(self, tensor: Tensor, reason: str) -> None:
        """A new tensor none of whose dimensions may be sliced."""
        self.put(tensor, [Node(size, reason) for size in tensor.shape])

    def defer(self, tensor: Tensor, action: Callable[[], object]) -> None:
        """Do this only if the tensor's values are read: what nobody uses must not restrict the plan."""
        self._deferred[id(tensor)] = action

    def protect(self, tensors: Iterable[Tensor]) -> None:
        """Tensors of the caller, to be given back their values if the forward pass overwrites them."""
        for tensor in tensors:
            if storage := storage_of(tensor):
                self._held.add(storage)
            if pointer := pointer_of(tensor):
                self._protected.setdefault(pointer, []).append(tensor)

    def cut(self, source: Tensor, part: Node, whole: Node) -> None:
        """Some positions of a dimension are looked at by themselves; of tensors that the caller holds that is noted."""
        if (storage := storage_of(source)) in self._held:
            self._cuts.setdefault(storage, []).append((part, whole))

    def constant(self, tensor: Tensor) -> None:
        """A tensor of one repeated value: its units have no identity until something is written into it."""
        if pointer := pointer_of(tensor):
            self._constants[pointer] = []
        self.constants.begin(tensor)

    def loosen(self, tensor: Tensor, axes: list[Node]) -> list[Node]:
        """Copies of the axes of a part of a constant tensor: as long as those, but not the same units."""
        pairs = self._constants.get(pointer_of(tensor))
        if pairs is None:
            return axes
        copies = [Node(find(axis).size) for axis in axes]
        for copy, axis in zip(copies, axes, strict=True):
            self.constraints.equate(Length(copy), Length(axis))
            pairs.append((copy, axis))
        return copies

    def before_write(self, tensor: Tensor) -> None:
        """An operator is about to write into this memory."""
        self.axes(tensor)  # what was put off until the tensor is read is due now
        pointer = pointer_of(tensor)
        self.constants.end(tensor)
        for copy, axis in self._constants.pop(pointer, ()):
            unify(copy, axis)
        for owner in self._protected.pop(pointer, ()):
            self._overwritten.append((owner, owner.detach().clone()))

    def after_write(self, tensor: Tensor) -> None:
        """An operator has written into this memory: note which part of which dimension that was."""
        cuts = self._cuts.get(storage_of(tensor), ())
        for written in (set(leaves(factor)) for axis in self.shape(tensor) for factor in factors(axis)):
            self._written.update((find(part), find(whole)) for part, whole in cuts if written <= set(leaves(part)))

    def keep_slots(self, weights: Iterable[Tensor]) -> None:
        """Freeze the rest of a dimension of a buffer where a fixed part of it was written.

        Where samples were written to some positions (a memory bank), the others are for samples too. A width beside
        samples, or features of the input, is told by a weight that has it without them.
        """
        if not self._written:
            return
        axes = [set(leaves(axis)) for tensor in weights for axis in self.axes(tensor)]
        for part, whole in self._written:
            fixed = {leaf for leaf in leaves(part) if leaf.reason}
            widths = {leaf for axis in axes if not axis & fixed for leaf in axis}
            for leaf in set(leaves(whole)) - widths if fixed else ():
                freeze(leaf, "positions written by a slice")

    def restore(self) -> None:
        """Give overwritten tensors their values back, and protect them again."""
        with torch.no_grad():
            for tensor, value in self._overwritten:
                tensor.copy_(value)
        self.protect(tensor for tensor, _ in self._overwritten)
        self._overwritten.clear()

    def end_pass(self, lasting: Iterable[Tensor]) -> None:
        """A pass is over: of its tensors only these are met again."""
        self._axes = {id(tensor): self._axes[id(tensor)] for tensor in lasting}
        self._alive.clear()
        self._deferred.clear()
        self._constants.clear()
        self.constants.end_pass()
        self._cuts.clear()
        self.evidence.end_pass()

    def meet_unknown(self, operator: str, inputs: Iterable[Tensor], outputs: Iterable[Tensor]) -> None:
        """An operator without a rule: freeze all it touches."""
        reason = f"operator {operator} has no rule"
        touched = [freeze(axis, reason) for tensor in inputs for axis in self.axes(tensor)]
        if any(touched):
            self.unknown[operator] = self.unknown.get(operator, 0) + 1
        for tensor in outputs:
            if not self.knows(tensor):
                self.put_fixed(tensor, reason)


class AxisMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs every operator and applies its rule to the recording."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and loading the compiler takes longer than a trace

    def __init__(self, recording: Recording, handler: Callable[[Any], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording, self.handler = recording, handler

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = self.handler(func)
        if found.decompose is not None:
            with self:
                out = found.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        written = [args[place] if isinstance(place, int) else kwargs.get(place) for place in found.places(args)]
        for tensor in tensors_in(written):
            self.recording.before_write(tensor)
        out = func(*args, **kwargs)
        self.apply(func, found, out, args, kwargs)
        for tensor in tensors_in(written):
            self.recording.after_write(tensor)
        made, given = list(tensors_in(out)), list(tensors_in([*args, *kwargs.values()]))
        self.recording.evidence.follow(func, made, given)
        if torch.Tag.nondeterministic_seeded not in func.tags:
            self.recording.constants.follow(made, given)
        return out

    def apply(self, func: Any, found: Any, out: Any, args: Any, kwargs: Any) -> None:
        """Let the operator's rule say what it did; what the rule cannot read is frozen."""
        recording = self.recording
        # A result written into a given tensor (`out=`) is both: what that was and what the rule says.
        given = {name: value for name, value in kwargs.items() if name in found.writes}
        before = [(tensor, recording.forget(tensor)) for tensor in tensors_in(given)]
        rest = {name: value for name, value in kwargs.items() if name not in given}
        try:
            found.rule(recording, func, out, *args, **rest)
            for tensor, axes in before:
                for mine, its in zip(axes, recording.axes(tensor), strict=True):
                    unify(mine, its, str(func))
        except Unaligned:
            self.freeze(f"units do not line up in {func}", out, args, kwargs)
        except (TypeError, ValueError, IndexError, KeyError):  # an overload the rule was not written for
            recording.meet_unknown(str(func), tensors_in([*args, *kwargs.values()]), tensors_in(out))

    def freeze(self, reason: str, out: Any, args: Any, kwargs: Any) -> None:
        """Freeze all an operator touches."""
        for tensor in tensors_in([*args, *kwargs.values()]):
            for axis in self.recording.axes(tensor):
                freeze(axis, reason)
        for tensor in tensors_in(out):
            if not self.recording.knows(tensor):
                self.recording.put_fixed(tensor, reason)
