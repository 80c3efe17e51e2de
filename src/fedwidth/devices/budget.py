"""What a class of devices can spend on a round: memory, seconds, bytes to send, as a person writes them.

512MB   2GB   64MiB   1.5e9      bytes; MB is a million, MiB is 2^20
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedwidth.devices.memory import RUNTIME_BASE
from fedwidth.errors import OptionError, unknown

UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
UNIT_NAMES = ", ".join(UNITS)
_BYTES = {"": 1} | {unit.upper(): size for unit, size in UNITS.items()}
_SIZE = re.compile(r"(\d+\.?\d*(?:[eE]\d+)?)\s*([A-Za-z]*)", re.ASCII)


def parse_size(text: str | float, name: str = "a size") -> float:
    """A number of bytes.

    >>> parse_size("512MB"), parse_size("64 MiB"), parse_size(1000)
    (512000000.0, 67108864.0, 1000.0)
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        number, unit = float(text), ""
    else:
        found = _SIZE.fullmatch(str(text).strip())
        if not found or found[2].upper() not in _BYTES:
            raise OptionError(
                f"{name} must be a number of bytes such as 512MB, 2GB or 64MiB (units: {UNIT_NAMES}), not '{text}'"
            )
        number, unit = float(found[1]), found[2].upper()
    if not 0 < number < float("inf"):
        raise OptionError(f"{name} must be above 0, not '{text}'")
    return number * _BYTES[unit]


def show_megabytes(size: float) -> str:
    """Bytes in MB, with two digits behind the point or, of little, the first three that say something.

    >>> show_megabytes(4_380_000), show_megabytes(1988), show_megabytes(0)
    ('4.38', '0.00199', '0.00')
    """
    found = size / 1e6
    digits = 2 - math.floor(math.log10(found)) if 0 < found < 0.1 else 2
    return f"{found:,.{digits}f}"


@dataclass(frozen=True)
class DeviceClass:
    """A class of devices and what each of them can spend; None: it does not matter."""

    name: str
    memory: float | None = None
    """Bytes for the whole process that trains; with `gpu`, of the GPU's memory."""
    seconds: float | None = None
    """For a round: receiving, training, sending."""
    upload: float | None = None
    """Bytes that are sent after a round."""
    rate: float | None = None
    """Multiply-adds per second."""
    bandwidth: float | None = None
    """Bytes per second, down and up alike."""
    base: float = RUNTIME_BASE
    """Bytes that the process takes before there is a model."""
    weight: float = 1.0
    """How many such devices there are, in proportion to other classes."""
    gpu: bool = False
    """Whether it trains on a GPU like the one of this machine, whose kernels say what they take. Its `base` is 0, where
    none is stated."""

    @classmethod
    def of(cls, name: str, table: Mapping[str, Any]) -> DeviceClass:
        """A class as a recipe or a file of devices says it."""
        allowed = [field.name for field in fields(cls) if field.name != "name"]
        values: dict[str, Any] = {}
        for key, value in table.items():
            if key not in allowed:
                raise unknown(f"budget of device '{name}'", key, allowed)
            if key == "gpu":
                if not isinstance(value, bool):
                    raise OptionError(f"gpu of device '{name}' must be true or false, not {value!r}")
                values[key] = value
            elif key in ("memory", "upload", "base", "bandwidth"):
                values[key] = parse_size(value, f"{key} of device '{name}'")
            elif isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
                raise OptionError(f"{key} of device '{name}' must be a number above 0, not {value!r}")
            else:
                values[key] = float(value)
        if values.get("gpu"):
            values.setdefault("base", 0.0)
        found = cls(name, **values)
        if found.memory is None and found.seconds is None and found.upload is None:
            raise OptionError(f"device '{name}' states no budget: give memory, seconds or upload")
        if found.memory is not None and found.memory <= found.base:
            little = found.memory < 1e6  # as where somebody forgot the unit
            has = f"{found.memory:,.0f} bytes" if little else f"{found.memory / 1e6:,.0f} MB"
            hint = f"; units are {UNIT_NAMES}, and without one a size is in bytes" if little else ""
            raise OptionError(
                f"device '{name}' has {has} of memory, but Python and PyTorch alone take {found.base / 1e6:,.0f} MB"
                f" (its `base`){hint}"
            )
        return found


def read_devices(path: Path) -> list[DeviceClass]:
    """The classes of a TOML file: its tables by name or, where it has none, one class named after the file."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"cannot read {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{path} is not TOML: {error}") from None
    tables = {name: value for name, value in found.items() if isinstance(value, dict)}
    if tables and len(tables) < len(found):
        raise OptionError(f"{path} has numbers beside its tables: give every device a table of its own")
    return [DeviceClass.of(name, table) for name, table in (tables or {path.stem: found}).items()]
