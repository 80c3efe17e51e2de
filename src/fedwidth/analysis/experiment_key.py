"""Whether two runs are runs of one experiment, for tables that take their runs from wherever they were made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedwidth.config.influence import MEASURING, PRECISION, ROUNDING, experiment_of

MAY_DIFFER = ("seed", *ROUNDING, *PRECISION, *MEASURING)
"""Runs of one experiment may differ in these: where they ran, how precisely, and how often they were evaluated."""


def experiment_key(settings: Mapping[str, Any]) -> str:
    """A text that is equal for all runs of one experiment, from their settings as nested tables.

    >>> experiment_key({"rounds": 7, "seed": 1}) == experiment_key({"rounds": 7, "seed": 2, "precision": "bf16"})
    True
    """
    return json.dumps(experiment_of(settings, without=MAY_DIFFER), sort_keys=True)
