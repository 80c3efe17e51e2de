"""How long a round would take on the devices, and who is left out of it: failed, or later than the deadline.

A client takes

    bytes down / bandwidth  +  multiply-adds / rate  +  bytes up / bandwidth   seconds,

with the rate and the bandwidth of its capacity; one of the two alone counts alone. A round lasts as long as its slowest
client, or until the deadline where somebody is late; a client that fails is not waited for. Absent clients are left out
before training: sub-models are chosen for all of the cohort, and only those of the others are trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fedwidth.devices.capacity import parse_capacity
from fedwidth.errors import CapacityError, OptionError
from fedwidth.randomness import numpy_generator
from fedwidth.settings import DeviceSettings

EVERYBODY = "all"
"""The key that stands for all capacities that a table does not name."""
FAILED, LATE = "failed", "later than the deadline"


@dataclass(frozen=True)
class Speeds:
    """How fast devices of each capacity compute and send. What an empty table is about takes no time."""

    rates: Mapping[float | str, float]
    """Multiply-adds per second, by capacity."""
    bandwidths: Mapping[float | str, float]
    """Bytes per second, down and up alike, by capacity."""

    @classmethod
    def of(cls, devices: DeviceSettings, capacities: Iterable[float]) -> Speeds | None:
        """The speeds that the settings give devices of these capacities; None where they give none."""
        enrolled = list(capacities)
        tables = [
            _read(f"devices.{name}", getattr(devices, name), unit, enrolled)
            for name, unit in (("rates", "multiply-adds"), ("bandwidth", "bytes"))
        ]
        if any(tables):
            return cls(*tables)
        if devices.deadline:
            raise OptionError("devices.deadline needs devices.rates or devices.bandwidth: without, no time passes")
        return None

    def seconds(self, capacity: float, *, macs: float, sent: float) -> float:
        """How long a device of this capacity takes for so many multiply-adds, and bytes down and up together."""
        return _divide(macs, self.rates, capacity) + _divide(sent, self.bandwidths, capacity)


def fails(devices: DeviceSettings, client: int, *, round: int, seed: int) -> bool:
    """Whether the client fails in this round."""
    if not devices.dropout:
        return False
    return bool(numpy_generator(seed, "dropout", round, client).random() < devices.dropout)


def _divide(amount: float, speeds: Mapping[float | str, float], capacity: float) -> float:
    if not speeds:
        return 0.0
    return amount / (speeds[capacity] if capacity in speeds else speeds[EVERYBODY])


def _read(name: str, table: Mapping[str, Any], unit: str, enrolled: Sequence[float]) -> dict[float | str, float]:
    """Read a table of numbers by capacity, which must have one for every capacity that is enrolled."""
    found: dict[float | str, float] = {}
    for key, value in table.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise OptionError(f"{name} must give {unit} per second, numbers above 0, not {value!r} for '{key}'")
        try:
            found[key if key == EVERYBODY else parse_capacity(key)] = float(value)
        except CapacityError:
            raise OptionError(f"{name} goes by capacity, such as '1/4', or '{EVERYBODY}', not '{key}'") from None
    for capacity in enrolled if found and EVERYBODY not in found else ():
        if capacity not in found:
            shown = Fraction(capacity).limit_denominator(1000)
            raise OptionError(f"{name} gives nothing for capacity {shown}: name it, or '{EVERYBODY}'")
    return found
