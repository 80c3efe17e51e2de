"""Between settings and adapters: what a method of adapters needs, and what does not go together."""

from __future__ import annotations

from dataclasses import replace

from fedwidth.adapters.averages import UNITS
from fedwidth.errors import OptionError
from fedwidth.methods import Method
from fedwidth.plan.plan import Plan
from fedwidth.settings import Settings

RANK = 16
"""The rank of adapters where a method is defined for them and nobody said which."""


def with_rank(settings: Settings, method: Method) -> Settings:
    """The settings with adapters, where the method is defined for them, unless they ask for some."""
    if settings.adapter.rank or not method.adapters:
        return settings
    return replace(settings, adapter=replace(settings.adapter, rank=RANK))


def without_scaler(settings: Settings, plan: Plan) -> Settings:
    """The settings without HeteroFL's scaler where capacities are shares of ranks: activations are as wide as ever."""
    if not plan.adapters or plan.groups.keys() - plan.rank_groups:
        return settings
    return replace(settings, training=replace(settings.training, scaler=False))


def check_adapters(settings: Settings, method: Method) -> None:
    """Refuse settings of adapters that do not go with each other or with the method."""
    wanted, server = settings.adapter, settings.server
    if not wanted.rank and (wanted.targets or wanted.train or wanted.alpha):
        raise OptionError("adapter.targets, alpha and train are those of adapters, so adapter.rank must be above 0")
    if wanted.average == UNITS:
        return
    said = f"adapter.average is '{wanted.average}'"
    if method.close is not None:
        raise OptionError(
            f"{said}, but {method.title} ends its rounds in its own way: with it only 'units' is possible"
        )
    if wanted.widths:
        raise OptionError(f"{said}, which adds products of whole layers: adapter.widths must be false")
    if server.holders_exponent != 1.0 or server.optimiser != "plain" or server.lr != 1.0 or server.lr_decay != 1.0:
        raise OptionError(
            f"{said}, which the server takes as it is: server.holders_exponent and lr must be 1, and optimiser 'plain'"
        )
    if settings.secure.enabled or settings.privacy.noise or server.robust != "none":
        raise OptionError(
            f"{said}, which is no average of sums: secure.enabled must be false, privacy.noise 0 and server.robust none"
        )


def check_choice(settings: Settings, method: Method, plan: Plan, smallest: float) -> None:
    """Refuse a method that does not hand out units of adapters, where the model has some."""
    if not plan.adapters:
        if settings.adapter.average != UNITS:
            raise OptionError(f"adapter.average is '{settings.adapter.average}', but the model has no adapters")
        return
    if not method.slices:
        raise OptionError(f"{method.title} hands out no slices of the model, so it cannot choose units of adapters")
    if not method.reads:
        index = method.select(plan, capacity=smallest)
        if index.units is None:
            raise OptionError(
                f"{method.title} chooses tensor by tensor, and a unit of an adapter is a row of A with its column of B"
            )
