"""When a device takes part: only within certain hours, while it charges, or on Wi-Fi, as its owner states.

    python device.py … --only-when "hours=22-6 charging wifi"

While a condition does not hold the device is not connected, so the server does not draw it. This file is copied into
the devices' folders beside `device.py`, so it imports the standard library only.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

CHARGING, WIFI = "charging", "wifi"
HOURS = re.compile(r"hours=(\d{1,2})-(\d{1,2})")
SYSTEM = Path("/sys/class")
"""Where Linux says what power and networks there are."""


@dataclass(frozen=True)
class Conditions:
    """What must hold for a device to take part."""

    hours: tuple[int, int] | None = None
    """From the first hour until before the second, by the device's own clock; 22-6 goes over midnight."""
    charging: bool = False
    wifi: bool = False

    @classmethod
    def parse(cls, text: str) -> Conditions:
        """Read what an owner states; `ValueError` names what is wrong.

        >>> Conditions.parse("hours=22-6 charging")
        Conditions(hours=(22, 6), charging=True, wifi=False)
        """
        hours, found = None, set()
        for word in text.split():
            if (span := HOURS.fullmatch(word)) is not None:
                hours = int(span[1]), int(span[2])
                if not (hours[0] < 24 and hours[1] <= 24 and hours[0] != hours[1]):
                    raise ValueError(f"'{word}' must be hours from 0 to 24 that differ, such as hours=22-6")
            elif word in (CHARGING, WIFI):
                found.add(word)
            else:
                raise ValueError(f"'{word}' is no condition; allowed: hours=22-6, {CHARGING}, {WIFI}")
        return cls(hours, CHARGING in found, WIFI in found)

    def why_not(self, *, clock: Callable[[], time.struct_time] = time.localtime, system: Path = SYSTEM) -> str | None:
        """Why the device takes no part now; None where it does.

        >>> Conditions(hours=(22, 6)).why_not(clock=lambda: time.strptime("21:59", "%H:%M"))
        'it is not between 22 and 6 o’clock'
        >>> Conditions(hours=(22, 6)).why_not(clock=lambda: time.strptime("05:59", "%H:%M"))
        """
        if self.hours is not None and not is_within(clock().tm_hour, *self.hours):
            return f"it is not between {self.hours[0]} and {self.hours[1]} o’clock"
        if self.charging and not is_charging(system):
            return "it runs on its battery"
        if self.wifi and not is_on_wifi(system):
            return "it is not on Wi-Fi"
        return None


def is_within(hour: int, first: int, last: int) -> bool:
    """Whether an hour lies in a span, which may go over midnight."""
    return first <= hour < last if first < last else hour >= first or hour < last


def is_charging(system: Path = SYSTEM) -> bool:
    """Whether the device has mains power; one that has no battery at all always does."""
    supplies = list((system / "power_supply").glob("*"))
    batteries = [supply for supply in supplies if _read(supply / "type") == "Battery"]
    if not batteries or any(_read(supply / "online") == "1" for supply in supplies if supply not in batteries):
        return True
    return any(_read(battery / "status") in ("Charging", "Full", "Not charging") for battery in batteries)


def is_on_wifi(system: Path = SYSTEM) -> bool:
    """Whether a wireless network is up; whether traffic goes over it is the system's to decide."""
    cards = [
        card for card in (system / "net").glob("*") if (card / "wireless").exists() or (card / "phy80211").exists()
    ]
    return any(_read(card / "operstate") == "up" for card in cards)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
