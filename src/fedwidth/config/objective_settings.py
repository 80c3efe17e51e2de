"""Between settings and objectives: how settings name an objective that was made in Python."""

from __future__ import annotations

import sys
from dataclasses import replace

from fedwidth.methods.lookup.by_name import UNNAMED
from fedwidth.objectives import OBJECTIVES, Objective
from fedwidth.settings import ObjectiveSettings, Settings


def name_objective(settings: Settings, objective: Objective) -> Settings:
    """The settings with the name of this objective, so that they say what was run: its own, or where it is defined."""
    return replace(settings, objective=ObjectiveSettings(_name(objective)))


def _name(objective: Objective) -> str:
    if OBJECTIVES.get(objective.name) == objective:
        return objective.name
    home = getattr(objective.loss, "__module__", "")
    order = sorted(sys.modules.items(), key=lambda entry: (entry[0] == "__main__", entry[0] != home))
    for _, module in order:
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is objective:
                return f"{module.__name__}:{name}"
    return f"{UNNAMED}:{objective.name}"
