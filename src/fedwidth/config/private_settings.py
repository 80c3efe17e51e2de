"""Settings of private and robust sums: what they turn off, and what does not go with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedwidth.errors import OptionError
from fedwidth.methods import Method
from fedwidth.methods.lookup.single_updates import why_not_private, why_not_robust
from fedwidth.privacy.accounting import check_accounting
from fedwidth.settings import MIN_HOLDERS, Settings

MAX_NOISE = 32.0
"""With secure sums: how many times as large as the largest change of a weight the noise may be."""


def with_privacy(settings: Settings, given: Mapping[str, Any]) -> Settings:
    """The settings a recipe stands for: where sums are private, rows of classes count for everybody."""
    if not settings.privacy.noise or "label_rows" in given.get("server", {}):
        return settings
    return replace(settings, server=replace(settings.server, label_rows=False))


def check_privacy(settings: Settings, method: Method) -> None:
    """Refuse what does not go with private sums."""
    privacy, server, devices = settings.privacy, settings.server, settings.devices
    for name in ("clip", "min_denominator"):
        if not getattr(privacy, name):
            raise OptionError(f"privacy.{name} must be above 0")
    if not 0 <= privacy.quantile < 1:
        raise OptionError(f"privacy.quantile must be a share from 0 to below 1, not {privacy.quantile:g}")
    if not privacy.noise:
        if privacy.epsilon or privacy.quantile:
            raise OptionError("privacy.epsilon and privacy.quantile need noise: privacy.noise is 0")
        return
    try:
        check_accounting(noise=privacy.noise, rate=1.0, delta=privacy.delta)
    except OptionError as error:
        raise OptionError(f"privacy.{error}") from None
    if (reason := why_not_private(method)) is not None:
        raise OptionError(f"{method.title} has no private sums: {reason}")
    if devices.sampling != "poisson" and privacy.adjacency == "add-or-remove":
        raise OptionError(
            'devices.sampling must be "poisson" with privacy.noise: a draw of a fixed size is not what its accounting'
            ' assumes; or take privacy.adjacency = "zero-out", which counts on no luck in the draw'
        )
    if server.weighting != "equal":
        raise OptionError(
            f"server.weighting must be equal with privacy.noise, not {server.weighting}: one client"
            " could count for more than its clip"
        )
    if server.label_rows:
        raise OptionError(
            "server.label_rows must be false with privacy.noise: what rows are divided by would tell who"
            " has which class"
        )
    if server.holders_exponent != 1.0:
        raise OptionError("server.holders_exponent must be 1 with privacy.noise: sums are divided by fixed numbers")
    if server.clip or server.screen:
        raise OptionError(
            "server.clip must be 0 and server.screen false with privacy.noise: what counts of one client"
            " would depend on the others"
        )
    if server.robust != "none":
        raise OptionError("server.robust must be none with privacy.noise: there the sum is what noise is made for")
    if settings.secure.enabled:
        _check_device_noise(settings)


def _check_device_noise(settings: Settings) -> None:
    privacy = settings.privacy
    if privacy.adjacency != "zero-out":
        raise OptionError(
            'privacy.adjacency must be "zero-out" with secure.enabled: the server knows who takes part, and how many'
            " hold what is opened"
        )
    noise, change = privacy.noise * privacy.clip, min(privacy.clip, settings.secure.clip)
    if noise > MAX_NOISE * change:
        raise OptionError(
            f"privacy.noise times privacy.clip is {noise:g}, and may be at most {MAX_NOISE:g} times the largest change"
            f" of a weight ({change:g}, of secure.clip and privacy.clip) with secure.enabled: words have so many bits"
        )
    if privacy.quantile:
        raise OptionError("privacy.quantile must be 0 with secure.enabled: the bits of clients are not summed there")


def check_robust(settings: Settings, method: Method) -> None:
    """Refuse what does not go with robust sums."""
    server = settings.server
    if not 0 < server.robust_share < 0.5:
        raise OptionError(f"server.robust_share must be above 0 and below 0.5, not {server.robust_share:g}")
    if not server.robust_bound:
        raise OptionError("server.robust_bound must be above 0")
    if server.robust == "none":
        return
    if (reason := why_not_robust(method)) is not None:
        raise OptionError(f"{method.title} has no robust sums: {reason}")
    if settings.devices.per_round < MIN_HOLDERS:
        raise OptionError(
            f"devices.per_round is {settings.devices.per_round}, but with server.robust what fewer than {MIN_HOLDERS}"
            " clients hold stays as it is: nothing would ever change"
        )
    if settings.secure.enabled:
        raise OptionError("server.robust must be none with secure.enabled: the server sees no single update")
    if server.weighting != "equal":
        raise OptionError(
            f"server.weighting must be equal with server.robust, not {server.weighting}: a hostile client would say"
            " what it weighs"
        )
    if server.holders_exponent != 1.0:
        raise OptionError("server.holders_exponent must be 1 with server.robust, which is no average over all holders")
    if server.robust == "norm-bounded" and server.clip:
        raise OptionError("server.clip must be 0 with server.robust = norm-bounded, which bounds norms itself")
