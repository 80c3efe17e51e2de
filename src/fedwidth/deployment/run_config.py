"""Flower's run config of a deployment: how long rounds wait, and what deployments add to the recipe's settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from fedwidth.errors import OptionError, unknown
from fedwidth.settings import Settings

CLIP = 2.0
"""The multiple of the round's median; docs/deploy-flower.md says what it was measured to keep out, and to cost."""


@dataclass(frozen=True)
class RunConfig:
    """Flower's run config of the app: the keys of `[tool.flwr.app.config]`, with underscores for their dashes."""

    out: str = ""
    """Folder of the run on the server's machine, for checkpoints, metrics and the summary."""
    load: str = ""
    """The function that loads a device's own data, package.module:function; empty: the data that the recipe names."""
    enrolled: str = ""
    """Folder of the enrolled devices, with what each may claim (`deploy add`); empty: every device, and any claim."""
    groups: str = ""
    """The groups of devices that take part, with commas between them; empty: all devices."""
    least_clients: int = 1
    """With fewer answers a round is repeated."""
    over_select: float = 0.0
    """Share of clients that are asked beyond those that a round needs; the first answers that are enough end it."""
    quorum: float = 0.75
    """Share of a round's answers after which it waits for the others only as long again as these took."""
    patience_seconds: float = 60.0
    """How long a round waits after the quorum at least."""
    wait_for: int = 0
    """How many nodes to wait for before the first round; 0: as many as a round takes."""
    wait_seconds: float = 600.0
    """How long to wait for enough nodes, before the run fails."""
    introduction_seconds: float = 20.0
    """How long to wait for a new node's introduction; a node that takes longer is asked again, but not waited for."""
    round_seconds: float = 600.0
    """How long a round waits for answers at most."""
    opening_seconds: float = 60.0
    """How long a round of secure sums waits for the clients that open it and share for the next one."""
    attempts: int = 5
    """How often a round with too few answers is tried, before the run fails."""
    norm_bound: float = 10.0
    """Largest norm of an update, in multiples of the norm of the sub-model that was sent."""
    most_samples: int = 1_000_000
    """Most samples that a client may claim for its weight."""
    clip: float = CLIP
    """Largest norm of an update, in multiples of the round's median, where the recipe has no `server.clip`."""
    screen: bool = True
    """Whether updates that point away from those of the round's others are left out (`server.screen`)."""
    alarm: float = 10.0
    """Points of accuracy whose loss the log reports as an alarm, where the recipe has no `evaluation.alarm`."""
    history: int = 5
    """How many earlier checkpoints to keep besides every tenth, where the recipe has no `checkpoint_history`."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> RunConfig:
        """Read a run config; unknown keys and values of another kind are refused."""
        kinds: dict[str, Any] = {field.name: type(field.default) for field in fields(cls)}
        values: dict[str, Any] = {}
        for key, value in config.items():
            name = key.replace("-", "_")
            if name not in kinds:
                raise unknown("run config key", key, [name.replace("_", "-") for name in kinds])
            kind = kinds[name]
            if isinstance(value, bool) != (kind is bool) or not isinstance(
                value, (int, float) if kind is float else kind
            ):
                raise OptionError(f"run config key '{key}' must be {kind.__name__}, not {value!r}")
            if kind in (int, float) and not 0 <= value < math.inf:
                raise OptionError(f"run config key '{key}' must be at least 0, not {value!r}")
            values[name] = kind(value)
        found = cls(**values)
        if not 0 < found.quorum <= 1:
            raise OptionError(f"run config key 'quorum' must be above 0 and at most 1, not {found.quorum:g}")
        return found

    def with_defaults(self, settings: Settings) -> Settings:
        """The recipe's settings, completed with those that deployments have where the recipe says nothing."""
        server, evaluation = settings.server, settings.evaluation
        if not settings.secure.enabled:  # with which no single update is seen
            server = replace(server, clip=server.clip or self.clip, screen=server.screen or self.screen)
        return replace(
            settings,
            # Whatever the recipe says: a round on real devices is dear, and a repeated one begins at its checkpoint.
            checkpoint_every=1,
            checkpoint_history=settings.checkpoint_history or self.history,
            server=server,
            evaluation=replace(evaluation, alarm=evaluation.alarm or self.alarm),
        )
