"""The same devices beside a narrower server: who can hold its whole model trains all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from fedwidth.devices.capacity import LETTERS, Capacities
from fedwidth.devices.profile import read_profiles
from fedwidth.errors import OptionError
from fedwidth.settings import Settings

SERVER, MODEL = "server", "model"
"""What capacities may be shares of."""


def as_shares_of_server(settings: Settings, *, ranks: bool = False, models: bool = False) -> Settings:
    """The settings with capacities that are shares of the server's width, where they are given of the model's, and with
    those left out that cannot hold the whole of the server's model, where only those that can are to train.

    `ranks` says that the method's capacities are shares of a rank, `models` that networks were given by capacity.
    """
    devices, width = settings.devices, settings.model.width
    if devices.relative_to != MODEL:
        return _without_narrower_devices(settings, models=models)
    whole = replace(settings, devices=replace(devices, relative_to=SERVER), model=replace(settings.model, width=1.0))
    if width == 1:
        return _without_narrower_devices(whole, models=models)
    for key in ("budgets", "profiles", "rates", "bandwidth"):
        if getattr(devices, key):
            raise OptionError(
                f"devices.relative_to is model, but devices.{key} are of the server's model: leave one out"
            )
    if models or settings.models:
        raise OptionError("devices.relative_to is model, but `models` go by shares of the server's width")
    if ranks or settings.adapter.rank:
        raise OptionError(
            "devices.relative_to is model, but capacities are shares of adapter.rank here, not of a width"
        )
    if devices.correlate != "none" and 0 < devices.correlate_strength < 1:
        raise OptionError(
            "devices.relative_to is model, and clients keep their sizes only where devices.correlate_strength is 0 or 1"
        )
    mix = Capacities.parse(devices.capacities)
    order = [value for value, weight in zip(mix.values, mix.weights, strict=True) if weight]
    if order != sorted(order, reverse=True):
        raise OptionError("devices.relative_to = model needs devices.capacities from the widest to the narrowest")
    alike = [value for value in mix.enrolled() if value >= width]
    if any(value in devices.excluded for value in alike) and not set(alike) <= set(devices.excluded):
        shown = ", ".join(f"{value:g}" for value in alike)
        raise OptionError(
            f"devices.excluded leaves out some of {shown}, who all train the whole of a server's model of {width:g}"
        )
    return _without_narrower_devices(with_narrower_server(whole, width), models=models)


def _without_narrower_devices(settings: Settings, *, models: bool) -> Settings:
    """The settings whose `devices.excluded` names all capacities below 1, where `devices.whole_only` asks for that.

    >>> s = Settings()
    >>> asked = replace(s, devices=replace(s.devices, capacities="a3-b1-c1", whole_only=True))
    >>> found = _without_narrower_devices(asked, models=False)
    >>> found.devices.excluded
    [0.5, 0.25]
    """
    devices = settings.devices
    if not devices.whole_only:
        return settings
    for key, other in (("devices.budgets", devices.budgets), ("[[models]]", models or settings.models)):
        if other:
            raise OptionError(f"devices.whole_only goes by devices.capacities, not by {key}: leave one out")
    there = Capacities.parse(devices.capacities).enrolled()
    if 1.0 not in there:
        raise OptionError(
            f"devices.whole_only leaves nobody: the widest device holds {there[0]:g} of the server's model, whose"
            f" model.width is {settings.model.width:g}; make that narrower (with devices.relative_to = model), or let"
            " narrower devices train"
        )
    if 1.0 in devices.excluded:
        raise OptionError(
            "devices.whole_only lets only those of capacity 1 train, and devices.excluded leaves them out"
        )
    left_out = sorted({value for value in there if value < 1} | set(devices.excluded), reverse=True)
    return replace(settings, devices=replace(devices, excluded=left_out, whole_only=False))


def with_narrower_server(settings: Settings, width: float) -> Settings:
    """The run with a server's model of this share of its width, and the same devices.

    >>> found = with_narrower_server(Settings(), 1 / 4)
    >>> found.model.width, found.devices.capacities
    (0.25, 'a3-b1-c1')
    """
    devices, evaluation = settings.devices, settings.evaluation
    written = devices.capacities
    there = Capacities.parse(written).enrolled()  # what is excluded and nobody has must not be taken for another size
    return replace(
        settings,
        model=replace(settings.model, width=settings.model.width * width),
        devices=replace(
            devices,
            capacities=_mix(written, width) if isinstance(written, str) else [_share(own, width) for own in written],
            excluded=_shares([value for value in devices.excluded if value in there], width),
            profiles={
                _fraction(share): {group: _share(own, width) for group, own in profile.items()}
                for capacity, profile in read_profiles(devices).values()
                if (share := _share(capacity, width)) < 1
            },
        ),
        evaluation=replace(evaluation, capacities=_shares(evaluation.capacities, width)),
    )


def _shares(values: Sequence[float], width: float) -> list[float]:
    """Capacities as shares of a narrower width, each once."""
    return list(dict.fromkeys(_share(value, width) for value in values))


def _share(value: float, width: float) -> float:
    """A capacity as a share of a narrower width, all of which a wider device can hold."""
    return min(1.0, value / width)


def _mix(written: str, width: float) -> str:
    """A mix of capacities as shares of a narrower width, in letters where there are some for them.

    >>> _mix("a1-b1-c2", 1 / 2), _mix("1:1 3/8:0.5", 1 / 2)
    ('a2-b2', '1:1.0 3/4:0.5')
    """
    mix = Capacities.parse(written)
    weights: dict[float, float] = {}
    for value, weight in zip(mix.values, mix.weights, strict=True):
        if weight:
            share = _share(value, width)
            weights[share] = weights.get(share, 0.0) + weight
    letters = {value: letter for letter, value in LETTERS.items()}
    if all(value in letters and weight == int(weight) for value, weight in weights.items()):
        return "-".join(f"{letters[value]}{weight:.0f}" for value, weight in weights.items())
    return " ".join(f"{_fraction(value)}:{weight!r}" for value, weight in weights.items())


def _fraction(value: float) -> str:
    near = Fraction(value).limit_denominator(1000)
    return str(near) if float(near) == value else repr(value)
