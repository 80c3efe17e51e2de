"""Updates: what a client sends back, what it weighs (FedRolex appendix A.3), and when it is refused.

Values that are not finite are refused of a state, too: one of them spoils every average it is part of. A device is
asked once for all tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedwidth.core.index import Index
from fedwidth.core.running_mean import accumulable, sum_dtype
from fedwidth.core.submodel import State
from fedwidth.errors import OptionError, SelectionError, StateError, UpdateError
from fedwidth.plan.units import whole_numbers

PUBLIC_WEIGHTS = ("equal", "model-size")
"""Ways to weigh a client that need nothing which only the client knows."""


@dataclass(frozen=True)
class Update:
    """What a client sends back: its trained sub-model, what it weighs, and what it reports."""

    sub: State
    index: Index
    weight: float = 1.0
    labels: Tensor | None = None
    """The classes of which the client has samples; rows of other classes do not count (HeteroFL). None: all rows do."""
    client: int | str | None = None
    reports: Mapping[str, State] = field(default_factory=dict)
    """What the client reports beside its sub-model, by name and tensor. The server adds reports up unweighted."""

    def __post_init__(self) -> None:
        # Frozen, so set once here: a weight is a float and labels are a LongTensor from now on.
        object.__setattr__(self, "weight", _checked_weight(self.weight, self.who))
        if self.labels is not None:
            try:
                object.__setattr__(self, "labels", whole_numbers(self.labels))
            except (TypeError, ValueError, RuntimeError, OverflowError):
                raise UpdateError(f"{self.who} has labels that are not whole numbers: {self.labels!r}") from None

    @property
    def who(self) -> str:
        """The sender as error messages name it."""
        return "an update" if self.client is None else f"client {self.client}"


def weigh(weighting: str, *, samples: int, index: Index, updates: int) -> float:
    """What a client weighs in the average: p_m of FedRolex Eq. 10, by appendix A.3.

    "model-size" counts the units that are kept (the paper's kernels), "updates" the steps of the optimiser.
    """
    size = index.number_of_units
    weights = {
        "equal": 1,
        "samples": samples,
        "model-size": size,
        "updates": updates,
        "hybrid": size * updates,
    }
    if weighting not in weights:
        raise OptionError(f"weighting must be one of {', '.join(weights)}, not {weighting!r}")
    return float(weights[weighting])


def check_update(update: Update, index: Index) -> None:
    """Refuse an update of another index, with wrong shapes, without weight, or with a value that is not finite."""
    if not isinstance(update, Update):
        raise UpdateError(f"expected an Update, not a {type(update).__name__}")
    who = update.who
    if update.index != index or getattr(update.sub, "key", index.key) != index.key:
        raise SelectionError(f"{who} sent a sub-model of another index")
    index.plan.check_shapes(update.sub, index.shapes, f"the index of {who}", may_lack=index.plan.untrained)
    if update.labels is not None and len(update.labels) and index.plan.label_axes:
        name, dim = index.plan.label_axes[0]
        classes = index.plan.shapes[name][dim]
        if not 0 <= int(update.labels.min()) <= int(update.labels.max()) < classes:
            raise UpdateError(f"{who} names a label outside 0 to {classes - 1}")
    check_finite(update.sub, who)
    index.plan.check_ties(update.sub)
    for reported in update.reports.values():
        for name, tensor in reported.items():
            if tuple(tensor.shape) != index.shapes.get(name):
                raise UpdateError(f"{who} reports '{name}' with shape {list(tensor.shape)}, which its index has not")
        check_finite(reported, who)


def check_finite(tensors: State, who: str) -> None:
    """Refuse values that are not finite, or that an average would round."""
    for name, tensor in tensors.items():
        if tensor.is_meta:
            raise UpdateError(f"{who} sent '{name}' without values (on the meta device)")
    for name in _doubtful(tensors):
        if not _is_fractional(tensors[name].dtype):
            raise UpdateError(f"{who} sent whole numbers in '{name}' beyond 2**53, which an average would round")
        if not _is_finite(tensors[name]):
            raise UpdateError(f"{who} sent a value in '{name}' that is not finite; the round keeps the old state")


def not_finite(tensors: State) -> str | None:
    """The name of the first tensor with a value that is not finite; None where all are.

    >>> not_finite({"steps": torch.tensor(3), "weight": torch.tensor([1.0, torch.inf])})
    'weight'
    """
    doubtful = _doubtful({name: tensor for name, tensor in tensors.items() if _is_fractional(tensor.dtype)})
    return next((name for name in doubtful if not _is_finite(tensors[name])), None)


def check_made(made: Mapping[str, State]) -> None:
    """Refuse a state with a value that is not finite, in the name of who made the first one.

    `made` has the states in the order in which they were made, by who made each. Where all is well only the last is
    looked at.
    """
    *_, last = made.values()
    if not_finite(last) is None:
        return
    for who, state in made.items():
        if (name := not_finite(state)) is not None:
            raise StateError(f"{who} gives '{name}' a value that is not finite, with which no client could train")


def _doubtful(tensors: State) -> list[str]:
    """The tensors that may hold what cannot be averaged; mostly none, after one question to each device."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors.values():
        kinds.setdefault((tensor.device, tensor.dtype), []).append(tensor.detach())
    if all(_are_sound(alike) for alike in kinds.values()):
        return []
    return [name for name, tensor in tensors.items() if not _are_sound([tensor.detach()])]


def _are_sound(alike: Sequence[Tensor]) -> bool:
    """Whether tensors of one dtype and device surely hold what can be averaged, in one question to the device.

    A finite sum proves every element finite in one cheap pass. Finite elements may have a sum that is not, so that a no
    says of fractional numbers only that each element is to be looked at.
    """
    dtype = alike[0].dtype
    if _is_fractional(dtype):
        return bool(torch.isfinite(torch.stack([accumulable(tensor).sum() for tensor in alike])).all())
    if dtype.itemsize < 8:
        return True
    together = torch.cat([tensor.flatten() for tensor in alike])
    return torch.equal(together.double().to(dtype), together)


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(accumulable(tensor.detach())).all())


def _is_fractional(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def check_alike(tensors: Mapping[str, Tensor], others: Mapping[str, Tensor], who: str) -> None:
    """Refuse tensors that are averaged in another dtype, or lie on another device, than those they are to join."""
    for name, tensor in tensors.items():
        other = others.get(name)
        if other is None or tensor is other:
            continue
        if tensor.device != other.device or sum_dtype(tensor.dtype) != sum_dtype(other.dtype):
            raise StateError(
                f"what {who} holds of '{name}' is averaged in {sum_dtype(tensor.dtype)} on {tensor.device}, and the"
                f" rest in {sum_dtype(other.dtype)} on {other.device}: they must be alike"
            )


def _checked_weight(weight: object, who: str) -> float:
    """The weight as a float, kept far from where a sum of weights would leave the range of floats."""
    try:
        value = math.nan if isinstance(weight, (bool, str)) else float(weight)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError, OverflowError):
        value = math.nan
    if not 1e-100 <= value <= 1e100:
        raise UpdateError(f"{who} has weight {weight}; it must be a finite number above 0 (1e-100 to 1e100)")
    return value
