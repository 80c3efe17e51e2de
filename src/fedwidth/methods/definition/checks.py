"""What the functions of a method return is checked here, and refused in the method's name."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedwidth.errors import FedwidthError, OptionError, StateError
from fedwidth.methods.definition.choosing import Cohort
from fedwidth.plan.plan import Plan
from fedwidth.plan.units import check_capacity


def checked_cohort(cohort: Cohort) -> list[tuple[int, float]]:
    """The cohort as a list of pairs, each with a capacity that is possible."""
    try:
        pairs = [(client, capacity) for client, capacity in cohort]
    except (TypeError, ValueError):
        raise OptionError(f"the cohort must be a list of (client, capacity) pairs, not {cohort!r}") from None
    for _, capacity in pairs:
        check_capacity(capacity)
    return pairs


def checked_memory(method: str, function: str, memory: object) -> dict[str, Tensor]:
    """The memory that a function of the method made, which must be tensors by name."""
    if not isinstance(memory, dict) or not all(isinstance(tensor, Tensor) for tensor in memory.values()):
        raise OptionError(f"{function} of {method} must return tensors by name, not {_kind(memory)}")
    return memory


def checked_state(
    method: str, function: str, state: object, plan: Plan, *, like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The global state that a function of the method made, which must fit the plan and be `like` the one before."""
    if not isinstance(state, dict):
        raise OptionError(f"{function} of {method} must return a state, not a {type(state).__name__}")
    try:
        plan.check_state(state)
    except FedwidthError as error:
        raise type(error)(f"{function} of {method}: {error}") from None
    for name, tensor in state.items():
        old = like.get(name, tensor)
        if tensor.dtype != old.dtype or tensor.device != old.device:
            raise StateError(
                f"{function} of {method}: '{name}' is {tensor.dtype} on {tensor.device}, but must stay {old.dtype} on"
                f" {old.device}"
            )
    return state


def check_sends(method: str, sends: object, plan: Plan) -> None:
    """Refuse to send what is neither a number nor has all parameters in the full model's shapes."""
    if not isinstance(sends, Mapping):
        raise OptionError(f"{method} must send numbers or tensors by name, not a {type(sends).__name__}")
    for name, value in sends.items():
        if isinstance(value, (int, float)):
            continue
        if not isinstance(value, Mapping):
            raise OptionError(
                f"{method} sends '{name}' as a {type(value).__name__}: allowed are numbers and tensors by name"
            )
        for tensor in (tensor for tensor in plan.parameters if tensor not in plan.tied):
            if tensor not in value or tuple(value[tensor].shape) != plan.shapes[tensor]:
                found = f"has shape {list(value[tensor].shape)}" if tensor in value else "is missing"
                raise OptionError(
                    f"{method} sends '{name}', of which '{tensor}' {found}: it must be {list(plan.shapes[tensor])}"
                )


def _kind(memory: object) -> str:
    """What was found where tensors by name were expected."""
    if not isinstance(memory, dict):
        return f"a {type(memory).__name__}"
    name, odd = next((name, value) for name, value in memory.items() if not isinstance(value, Tensor))
    return f"a {type(odd).__name__} as '{name}'"
