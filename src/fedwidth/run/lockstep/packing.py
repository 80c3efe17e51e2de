"""Which runs can train as one batch, and with which engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from fedwidth.config.influence import by_key
from fedwidth.engines.choice import choose_packed
from fedwidth.engines.packed.limits import SHARED
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from fedwidth.settings import Settings

ALIKE = (
    *("rounds", "devices.capacities", "engine", "device", "precision", "data.name", "data.root", "data.options"),
    *(f"training.{name}" for name in SHARED),
)
"""Settings that runs of one pack have in common, besides those of the model."""


def use_packed_engine(experiments: Sequence[Experiment]) -> None:
    """Give runs that leave the choice the engine they train with as one batch."""
    engine = choose_packed(experiments[0].trainer)
    for experiment in experiments:
        experiment.use_engine(engine)


def explain_packed_engine(experiment: Experiment) -> str:
    """What a run trains with as part of a batch, and how."""
    if choose_packed(experiment.trainer) == "cuda":
        return "cuda (their clients side by side in slots)"
    return "vectorised (their clients stacked by size)"


def check_for_packing(settings: Settings) -> None:
    """Refuse settings that no packed run can have."""
    if settings.engine not in ("auto", "cuda", "vectorised"):
        raise OptionError(f"packed runs need engine auto, vectorised or cuda, not {settings.engine}")


def group_for_packing(all_settings: Sequence[Settings], *, seeds_only: bool = False) -> list[list[int]]:
    """Numbers of the runs that go well together: of one length, and with clients of the same capacities.

    They need not be one experiment (`config.influence` says what is): a pack shares a model, data and a way to train.
    With `seeds_only` they are runs that differ in nothing but their seed.
    """
    groups: dict[str, list[int]] = {}
    for number, settings in enumerate(all_settings):
        found = by_key(asdict(settings))
        alike = {
            name: value
            for name, value in found.items()
            if (name != "seed" if seeds_only else name in ALIKE or name.startswith(("model.", "objective.")))
        }
        groups.setdefault(json.dumps(alike, sort_keys=True), []).append(number)
    return list(groups.values())
