"""Settings of secure sums: what they turn off, and what does not go with them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedwidth.core.updates import PUBLIC_WEIGHTS
from fedwidth.errors import OptionError
from fedwidth.methods import Method
from fedwidth.methods.lookup.secure_sums import segments_of
from fedwidth.secure.fixed_point import LARGEST
from fedwidth.settings import Settings

FEW = 3
"""With fewer clients in a sum, each of them knows what the other sent."""


def with_secure(settings: Settings, given: Mapping[str, Any]) -> Settings:
    """The settings a recipe stands for: with secure sums, rows of classes are restricted only if it says so.

    Which classes a client has shows in the rows that it leaves alone, and a row of one client is no sum.
    """
    if not settings.secure.enabled or "label_rows" in given.get("server", {}):
        return settings
    return replace(settings, server=replace(settings.server, label_rows=False))


def check_secure(settings: Settings, method: Method) -> None:
    """Refuse what does not go with secure sums."""
    secure, server, devices = settings.secure, settings.server, settings.devices
    if not secure.clip:
        raise OptionError("secure.clip must be above 0: words have so many bits")
    if not secure.enabled:
        return
    segments_of(method)
    if server.clip or server.screen:
        raise OptionError(
            "server.clip must be 0 and server.screen false with secure.enabled: the server sees no single update"
        )
    if server.weighting not in PUBLIC_WEIGHTS and not secure.max_weight:
        raise OptionError(
            f"server.weighting must be one of {', '.join(PUBLIC_WEIGHTS)} with secure.enabled, not"
            f" {server.weighting}, which only a client knows; or set secure.max_weight, the most that a client counts"
            " for"
        )
    if secure.max_weight * devices.per_round > LARGEST:
        raise OptionError(
            f"secure.max_weight is {secure.max_weight:g}, and {devices.per_round} clients of that weight are more than"
            f" the {LARGEST:,} that a word can hold"
        )
    if devices.per_round < secure.min_clients:
        raise OptionError(
            f"secure.min_clients is {secure.min_clients}, but devices.per_round only {devices.per_round}: nothing would"
            " ever be opened"
        )


def warn_of_little(settings: Settings) -> None:
    """Warn where secure sums are on and hide little."""
    if settings.secure.enabled and settings.secure.min_clients < FEW:
        warnings.warn(
            f"secure.min_clients is {settings.secure.min_clients}: of a sum of two clients each knows what the other"
            " sent",
            stacklevel=2,
        )
    if settings.secure.enabled and settings.server.label_rows:
        warnings.warn(
            "server.label_rows is true: the server learns how many clients of a round have each class, and where one"
            " alone has it, that client's row",
            stacklevel=2,
        )
