"""A plan as JSON has it, and back: what is stored of a model says how its tensors share widths.

Another trace, on other inputs, need not find the same: a model may go another way by what it reads. Profiles are left
out, which settings give (`config/budgets.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from fractions import Fraction
from typing import Any

from fedwidth.errors import StateError
from fedwidth.plan.adapters import Adapter
from fedwidth.plan.attributes import Attribute
from fedwidth.plan.axis import Concat, Fixed, Product, Units
from fedwidth.plan.formulas import Binary, Length, Number
from fedwidth.plan.plan import Coupling, Group, Plan
from fedwidth.plan.work import Work

FORMAT = 1
RECORDS = {
    kind.__name__: kind
    for kind in (Adapter, Attribute, Binary, Concat, Coupling, Fixed, Group, Length, Number, Plan, Product, Units, Work)
}
LEFT_OUT = {"profiles"}


def plan_as_json(plan: Plan) -> dict[str, Any]:
    """The plan in numbers, texts, lists and dictionaries.

    >>> import json, torch
    >>> from fedwidth import trace
    >>> plan = trace(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)), torch.zeros(2, 4))
    >>> read_plan(json.loads(json.dumps(plan_as_json(plan)))).groups == plan.groups
    True
    """
    return {"format": FORMAT, "plan": _written(plan)}


def read_plan(stored: Any) -> Plan | None:
    """The plan that was written so; None where none was, or by a version with another format."""
    if stored is None or (isinstance(stored, Mapping) and stored.get("format") != FORMAT):
        return None
    try:
        plan = _read(stored["plan"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(f"the plan of the model is damaged: {error!r}") from None
    if not isinstance(plan, Plan):
        raise StateError(f"the plan of the model is damaged: it is a {type(plan).__name__}")
    return plan


def _written(value: Any) -> Any:
    """A list for a tuple; for anything else that JSON does not have, a dictionary with its kind as the only key."""
    if is_dataclass(value):
        known = {entry.name: getattr(value, entry.name) for entry in fields(value) if entry.name not in LEFT_OUT}
        return {type(value).__name__: {name: _written(item) for name, item in known.items()}}
    if isinstance(value, Fraction):
        return {"Fraction": [value.numerator, value.denominator]}
    if isinstance(value, Mapping):
        return {"Mapping": {name: _written(item) for name, item in value.items()}}
    if isinstance(value, (set, frozenset)):
        return {"Set": sorted(value)}
    return [_written(item) for item in value] if isinstance(value, (list, tuple)) else value


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_read, value))
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    match kind:
        case "Fraction":
            return Fraction(*held)
        case "Set":
            return frozenset(held)
        case "Mapping":
            return {name: _read(item) for name, item in held.items()}
    return RECORDS[kind](**{name: _read(item) for name, item in held.items()})
