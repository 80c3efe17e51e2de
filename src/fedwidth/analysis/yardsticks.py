"""Yardsticks: what devices of unequal sizes reach without a method made for them, which such a method has to beat.

exclude     only the devices that can hold the server's model train it; where there is none, there is no such run
smallest    every device trains a server model as narrow as the smallest device
capped      the same method, the server's model as wide as the widest device; only where no device has full width
full        every device trains the server's model, as if it could: the upper end of the scale, not to be beaten

The gain of a run is its accuracy less that of the best of the first three. Beside runs of the same devices with a
server's model of other widths, those widths' exclude and smallest count as well: who may choose the width may choose it
without a method, too. Where all that take part train the whole
model, every choice of sub-models is FedAvg, bit for bit; so such runs are FedAvg's, and serve all methods.

Of devices with budgets they are yardsticks of the capacities that these have come to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from statistics import mean

from fedwidth.analysis.difference import Difference, compare
from fedwidth.analysis.experiment_key import experiment_key
from fedwidth.config.method_settings import method_of
from fedwidth.config.schema import keys
from fedwidth.devices.capacity import Capacities
from fedwidth.devices.narrower import with_narrower_server
from fedwidth.objectives.metric import ACCURACY, Measure
from fedwidth.settings import DeviceSettings, MethodSettings, Settings

EXCLUDE, SMALLEST, CAPPED, FULL = "exclude", "smallest for all", "capped", "full for all"
TO_BEAT = (EXCLUDE, SMALLEST, CAPPED)
KINDS = (*TO_BEAT, FULL)
PREFIX = "yardstick: "
"""How the titles of runs begin that were added as yardsticks."""

Accuracies = Mapping[int, float]
"""The accuracies of one experiment in percent, by seed."""


@dataclass(frozen=True)
class Gain:
    """How much better a run is than the best of its yardsticks that it has to beat."""

    kind: str
    """Which yardstick is the best one."""
    difference: Difference


def yardsticks(settings: Settings) -> dict[str, Settings]:
    """The yardsticks of a run, by kind; none for a run whose clients all train the whole model, and of several
    architectures only the model on every device.

    >>> found = yardsticks(Settings())
    >>> {kind: (each.method.name, each.model.width, each.devices.capacities) for kind, each in found.items()}
    {'exclude': ('fedavg', 1.0, 'a1-b1-c1-d1-e1'), 'smallest for all': ('fedavg', 0.0625, 'a1'), \
'full for all': ('fedavg', 1.0, 'a1')}
    """
    kept = {} if settings.devices.budgets else settings.devices.profiles  # those of budgets are of widths they fit
    settings = _spent(settings)
    devices, mix = settings.devices, Capacities.parse(settings.devices.capacities)
    enrolled = mix.enrolled(devices.excluded)
    if method_of(settings).holds_all or enrolled == (1.0,):
        return {}
    measured = replace(settings.evaluation, capacities=[])
    whole = replace(settings, method=MethodSettings("fedavg"), models=[], evaluation=measured)
    everybody = replace(_alike(replace(devices, capacities="a1", excluded=[])), profiles=kept)
    found = {}
    if settings.models:
        return {FULL: replace(whole, devices=everybody, name=f"{PREFIX}{FULL}", answers="")}
    if enrolled[0] == 1:
        narrow = [value for value in mix.enrolled() if value < 1]
        found[EXCLUDE] = replace(whole, devices=replace(devices, excluded=narrow, profiles=kept))
    smallest = replace(settings.model, width=settings.model.width * mix.enrolled()[-1])
    found[SMALLEST] = replace(whole, model=smallest, devices=everybody)
    if enrolled[0] == mix.enrolled()[0] < 1:
        found[CAPPED] = _cap(settings if len(enrolled) > 1 else whole, enrolled[0])
    found[FULL] = replace(whole, devices=everybody)
    return {kind: replace(each, name=f"{PREFIX}{kind}", answers="") for kind, each in found.items()}


def why_none(settings: Settings) -> str:
    """Why a run has no yardsticks, where it has none.

    >>> why_none(replace(Settings(), method=MethodSettings("scaffold")))
    'clients of SCAFFOLD train the whole model, whatever they can hold'
    """
    if (method := method_of(settings)).holds_all:
        return f"clients of {method.title} train the whole model, whatever they can hold"
    if settings.models:
        return "every device trains an architecture of its own"
    return "every device that takes part holds the whole of the server's model"


def missing(runs: Mapping[str, Settings]) -> dict[str, Settings]:
    """The yardsticks of these runs (by title) that are none of them, each once, by a title of their own.

    >>> list(missing({"mine": Settings(), "all": next(reversed(yardsticks(Settings()).values()))}))
    ['yardstick: exclude', 'yardstick: smallest for all']
    """
    known = {yardstick_key(settings) for settings in runs.values()}
    found: dict[str, Settings] = {}
    # First the runs whose methods need nothing of their training: their yardsticks serve the others, too.
    for title, settings in sorted(runs.items(), key=lambda run: _unbound(run[1]) != run[1]):
        serving = yardstick_keys(settings)
        for kind, each in yardsticks(settings).items():
            if known.isdisjoint(serving[kind]):
                known.add(serving[kind][0])
                name = f"{each.name} of {title}" if each.name in found else each.name
                found[name] = replace(each, name=name)
    return found


def is_yardstick(title: str) -> bool:
    """Whether a run was added as a yardstick, as its title tells."""
    return title.startswith(PREFIX)


def yardstick_key(settings: Settings) -> str:
    """A text that is equal for runs that are the same yardstick: runs of one experiment, or FedAvg by another name."""
    return experiment_key(asdict(_plain(settings)))


def yardstick_keys(settings: Settings) -> dict[str, list[str]]:
    """By kind, the keys of the runs that serve as a yardstick of this one, the closest first.

    A yardstick is trained as the run is, or else without what the run's method alone needs of its training: FedGKT
    augments nothing, which does not bind what it is compared with.
    """
    free = yardsticks(_unbound(settings))
    return {
        kind: list(dict.fromkeys(map(yardstick_key, (own, free[kind] if own.method.name == "fedavg" else own))))
        for kind, own in yardsticks(settings).items()
    }


def key_at_width(settings: Settings, width: float) -> str:
    """The key of the run with a server's model of this width, at most its own, beside the same devices.

    Devices with budgets are the same where these are, whatever capacities they come to beside that width.

    >>> half = with_narrower_server(Settings(), 1 / 2)
    >>> key_at_width(Settings(), 1 / 2) == key_at_width(half, 1 / 2)
    True
    """
    own = settings.model.width
    made = settings if width == own else with_narrower_server(settings, width / own)
    devices = made.devices
    if devices.budgets:
        devices = replace(devices, capacities=DeviceSettings().capacities, profiles={})
    return experiment_key(asdict(replace(made, model=replace(made.model, width=width), devices=devices)))


def _unbound(settings: Settings) -> Settings:
    """The settings with the defaults of training in place of what the method needs there."""
    needs = method_of(settings).needs
    own = [name.removeprefix("training.") for name in needs if name.startswith("training.")]
    bound = [key for key in own if getattr(settings.training, key) == needs[f"training.{key}"].value]
    defaults = {key: keys()[f"training.{key}"].default for key in bound}
    return replace(settings, training=replace(settings.training, **defaults))


def find_gain(mine: Accuracies, found: Mapping[str, Accuracies], measure: Measure = ACCURACY) -> Gain | None:
    """The gain over the best of the yardsticks that were run: best by its mean over the seeds shared with the run.

    Where lower values are better, it is by how much lower the run is.
    """
    shared = {kind: [their[seed] for seed in mine if seed in their] for kind, their in found.items() if kind != FULL}
    means = {kind: mean(values) for kind, values in shared.items() if values}
    if not means:
        return None
    best = max(means, key=lambda kind: measure.sign * means[kind])
    difference = compare(mine, found[best], measure)
    if difference is None:
        return None
    return Gain(best, replace(difference, values=tuple(measure.sign * value for value in difference.values)))


def _cap(settings: Settings, widest: float) -> Settings:
    """The run with a server model as wide as its widest device; capacities are shares of that one."""
    narrower = with_narrower_server(settings, widest)
    return _plain(replace(narrower, devices=_untimed(narrower.devices)))


def _plain(settings: Settings) -> Settings:
    """The run as one of FedAvg, where all who take part train the whole model and the method changes nothing else."""
    settings = _spent(settings)
    devices = settings.devices
    mix = Capacities.parse(devices.capacities)
    if mix.enrolled(devices.excluded) != (1.0,):
        return settings
    if len(mix.enrolled()) == 1:
        settings = replace(settings, devices=_alike(replace(devices, capacities="a1", dynamic=False, excluded=[])))
    else:
        sizes = replace(devices, excluded=sorted(devices.excluded, reverse=True), profiles={})
        settings = replace(settings, devices=sizes)
    chosen = method_of(settings)
    if chosen.local or chosen.close or chosen.start:
        return settings
    return replace(settings, method=MethodSettings("fedavg"))


def _spent(settings: Settings) -> Settings:
    """The run without what its devices can spend, which has come to their capacities and profiles."""
    return replace(settings, devices=replace(settings.devices, budgets={}))


def _alike(devices: DeviceSettings) -> DeviceSettings:
    """The devices as those of one size: nothing tells which are weak (`devices.correlate`), or wider in some groups."""
    plain = DeviceSettings()
    alike = replace(devices, correlate=plain.correlate, correlate_strength=plain.correlate_strength, profiles={})
    return _untimed(alike)


def _untimed(devices: DeviceSettings) -> DeviceSettings:
    """The devices without the time they take, which is stated for the widths that they train otherwise."""
    return replace(devices, rates={}, bandwidth={}, deadline=0.0)
