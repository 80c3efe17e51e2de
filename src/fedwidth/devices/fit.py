"""From a budget to a width: the widest sub-model that a device can train, and what it then takes.

A width fits if all of these do:

    memory     base of the process + sub-model as received + sub-model + optimiser + peak of a step (`memory.py`);
               of a class with `gpu`, the same on this machine's GPU, without a base
    seconds    3 x multiply-adds x samples / rate  +  (bytes down + bytes up) / bandwidth
    upload     bytes of the parameters that are trained: frozen ones are not sent

Wider needs more of each, so the widest is found by halving. Where a budget is left over, there may be a profile
(`profile.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from torch import Tensor, nn

from fedwidth.devices.budget import DeviceClass, show_megabytes
from fedwidth.devices.needs import Costing, Needs, Work, exceeded
from fedwidth.devices.profile import widen
from fedwidth.errors import CapacityError, OptionError, whole_number
from fedwidth.plan import trace

CHOICES = (*(Fraction(n, 16) for n in range(16, 0, -1)), Fraction(1, 32), Fraction(1, 64))


@dataclass(frozen=True)
class Fitted:
    """The widest sub-model that a class of devices can train."""

    device: DeviceClass
    capacity: Fraction | None
    """None where not even the narrowest fits."""
    needs: Needs
    """Of that sub-model; where none fits, of the narrowest."""
    limit: str
    """Which budget a wider one would break: "memory", "seconds", "upload", or none."""
    profile: Mapping[str, float] = field(default_factory=dict)
    """The share of each group, where groups can be wider than the capacity; empty where none can."""
    profile_needs: Needs | None = None


def fit(
    model: nn.Module,
    example_inputs: Any,
    *,
    devices: Iterable[DeviceClass] | None = None,
    batch: int = 10,
    samples: int = 500,
    optimiser: str = "sgd",
    precision: str = "tf32",
    choices: Sequence[float | Fraction] = CHOICES,
    rounding: str = "floor",
    profiles: bool = True,
    measure: bool = False,
    loss: Callable[[Any], Tensor] | None = None,
    heads: str = "within",
    keep: Sequence[str] = (),
    **budget: Any,
) -> list[Fitted]:
    """For each class of devices the widest sub-model of a model that it can train, and what that takes.

    The budget of one class is given by name (memory="512MB", seconds=30, upload="5MB", rate=4e9, bandwidth="1MB"), or
    several classes as `devices`; with `gpu=True` memory is that of this machine's GPU, whose kernels are asked. A
    device sees `samples` samples a round, in batches of `batch`, and computes in `precision` (`Settings.precision`).
    `measure` times this machine in place of a stated rate. The model may be on the meta device. `loss` makes one number
    of the model's output; without it, it is cross entropy over the last axis.

    >>> model = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 10))
    >>> import torch
    >>> [found] = fit(model, torch.zeros(2, 64), upload="600kB")
    >>> found.capacity, found.needs.upload, found.limit
    (Fraction(7, 16), 537640, 'upload')
    """
    if devices is None:
        devices = [DeviceClass.of("device", budget)]
    elif budget:
        raise OptionError(f"give devices or one budget by name, not both: {', '.join(budget)}")
    for name, value in (("batch", batch), ("samples", samples)):
        whole_number(name, value, least=1)
    plan = trace(model, example_inputs, heads=heads, keep=keep)
    work = Work(batch, samples, optimiser, precision)
    costing = Costing(model, plan, example_inputs, work, loss=loss, measure=measure)
    return fit_classes(costing, devices, choices=choices, rounding=rounding, profiles=profiles)


def fit_classes(
    costing: Costing,
    devices: Iterable[DeviceClass],
    *,
    choices: Sequence[float | Fraction] = CHOICES,
    rounding: str = "floor",
    profiles: bool = True,
) -> list[Fitted]:
    """For each class of devices the widest of these capacities whose sub-model fits all that the class can spend."""
    if not choices:
        raise OptionError("choices must name at least one capacity")
    ordered = sorted({Fraction(choice).limit_denominator(10_000) for choice in choices})
    return [_fit_one(costing, device, ordered, rounding, profiles) for device in devices]


def _fit_one(costing: Costing, device: DeviceClass, choices: list[Fraction], rounding: str, profiles: bool) -> Fitted:
    def at(capacity: Fraction) -> Needs:
        return costing.needs(costing.plan.counts(capacity, rounding), device)

    lowest, highest, limit = -1, len(choices) - 1, ""
    while lowest < highest:  # all up to the first fit, none from beyond the second
        middle = (lowest + highest + 1) // 2
        if broken := exceeded(at(choices[middle]), device):
            highest, limit = middle - 1, broken
        else:
            lowest = middle
    if lowest < 0:
        return Fitted(device, None, at(choices[0]), limit)
    found = Fitted(device, choices[lowest], at(choices[lowest]), limit)
    if not profiles or not limit:
        return found
    wider = widen(costing, device, choices[lowest], found.needs, rounding)
    return found if wider is None else replace(found, profile=wider[0], profile_needs=wider[1])


def capacity_of(found: Fitted) -> Fraction:
    """The capacity of a class; an error where nothing fits."""
    if found.capacity is None:
        raise CapacityError(why_none_fits(found))
    return found.capacity


def why_none_fits(found: Fitted) -> str:
    """What the narrowest sub-model needs that a class of devices does not have, in words."""
    device, needs = found.device, found.needs
    wants = {
        "memory": f"{needs.memory.total / 1e6:,.1f} MB of memory, and there are {(device.memory or 0) / 1e6:,.1f}",
        "seconds": f"{needs.seconds or 0:,.1f} s, and there are {device.seconds or 0:g}",
        "upload": f"{show_megabytes(needs.upload)} MB to send, and {show_megabytes(device.upload or 0)} can be",
    }
    return f"no width fits device '{device.name}': the narrowest needs {wants[found.limit]}"
