"""Profiles: a width for every group, where one width for all wastes a budget.

Memory sits in early layers and bytes in late ones. All groups are widened in step; a group whose next step would break
a budget stays, and the others go on (water that rises in unequal vessels). No group is narrower than with one width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction

from fedwidth.devices.budget import DeviceClass
from fedwidth.devices.capacity import parse_capacity
from fedwidth.devices.needs import MOMENTS, Costing, Needs, exceeded
from fedwidth.errors import CapacityError, OptionError
from fedwidth.settings import DeviceSettings

STEP = Fraction(1, 16)
MAX_MENDS = 4
"""How often a profile is made with less memory, where the arithmetic had promised too much."""


def read_profiles(devices: DeviceSettings) -> dict[str, tuple[float, dict[str, float]]]:
    """The capacities that settings give profiles, as they are written, and the shares of each by group or pattern."""
    found = {}
    for text, table in devices.profiles.items():
        where = f"devices.profiles.'{text}'"
        try:
            capacity = parse_capacity(text)
        except CapacityError:
            raise OptionError(f"devices.profiles goes by capacity, such as '1/4', not '{text}'") from None
        if not isinstance(table, Mapping) or capacity == 1:
            raise OptionError(f"{where} must be a table of shares by group, of a capacity below 1")
        for pattern, share in table.items():
            if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
                raise OptionError(f"{where} must give shares above 0 and at most 1, not {share!r} for '{pattern}'")
        found[text] = capacity, {pattern: float(share) for pattern, share in table.items()}
    return found


def widen(
    costing: Costing, device: DeviceClass, capacity: Fraction, needs: Needs, rounding: str
) -> tuple[dict[str, float], Needs] | None:
    """The profile that fills the budget of a device for which one width of `capacity` fits, and what it takes.

    None where no group can be wider.
    """
    plan, work = costing.plan, costing.work
    moments = MOMENTS[work.optimiser]
    # What the plan's arithmetic leaves out is as large a part everywhere, until the step itself is played.
    factor = needs.memory.growth / plan.work.memory(needs.counts, batch=work.batch, moments=moments)
    others = replace(device, memory=None)

    def fits(shares: Mapping[str, Fraction], slack: float) -> bool:
        counts = plan.counts(capacity, rounding, shares=shares)
        growth = slack * factor * plan.work.memory(counts, batch=work.batch, moments=moments)
        if device.memory is not None and growth + device.base > device.memory:
            return False
        return not exceeded(_without_memory(costing, counts, needs), others)

    slack = 1.0
    for _ in range(MAX_MENDS):
        allowed = slack
        shares = fill(dict.fromkeys(plan.groups, capacity), lambda tried: fits(tried, allowed))  # noqa: B023
        counts = plan.counts(capacity, rounding, shares=shares)
        if counts == needs.counts:
            return None
        found = costing.needs(counts, device)
        if not exceeded(found, device):
            return {name: float(share) for name, share in shares.items()}, found
        slack *= 1.1
    return None


def fill(shares: dict[str, Fraction], fits: Callable[[Mapping[str, Fraction]], bool]) -> dict[str, Fraction]:
    """Widen all groups in step; one that would break the budget stays, and the others go on."""
    rising = dict.fromkeys(shares)
    while rising:
        level = min(shares[name] for name in rising)
        lowest = [name for name in rising if shares[name] == level]
        raised = shares | {name: min(Fraction(1), level + STEP) for name in lowest}
        if fits(raised):
            shares = raised
        else:
            for name in lowest:
                alone = shares | {name: min(Fraction(1), level + STEP)}
                if fits(alone):
                    shares = alone
                else:
                    del rising[name]
        for name in [name for name in rising if shares[name] == 1]:
            del rising[name]
    return shares


def _without_memory(costing: Costing, counts: Mapping[str, int], known: Needs) -> Needs:
    """What a sub-model takes but for its memory, by arithmetic; time grows as the multiply-adds or the bytes do."""
    upload, macs = costing.upload(counts), costing.plan.work.macs(counts)
    growth = max(macs / known.macs, upload / max(1, known.upload))
    return replace(known, upload=upload, seconds=None if known.seconds is None else known.seconds * growth)
