"""A run with secure sums on real devices: what it needs, who may take part, and its engine."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from flwr.serverapp import Grid

from fedwidth.deployment.asking import Waiting
from fedwidth.deployment.attendance import Attendance, Introduction
from fedwidth.deployment.node.secure_sums import read_roster
from fedwidth.deployment.run_config import RunConfig
from fedwidth.deployment.secure.engine import SecureEngine
from fedwidth.deployment.secure.opened_rounds import OpenedRounds
from fedwidth.errors import OptionError
from fedwidth.secure.fixed_point import MAX_CLIENTS
from fedwidth.secure.keys import check_key
from fedwidth.secure.messages import RUN_BYTES
from fedwidth.settings import Settings
from fedwidth.training.client import Trainer


@dataclass(frozen=True)
class SecureRun:
    """What the server of a run with secure sums knows."""

    name: bytes
    """A name that no other run has."""
    roster: Mapping[int, EllipticCurvePublicKey]
    """The public keys of all devices that may take part, by client."""
    config: RunConfig

    @classmethod
    def of(cls, settings: Settings, config: RunConfig, roster: str) -> SecureRun:
        """A new run; `OptionError` where it could not have secure sums."""
        if config.over_select:
            raise OptionError("run config key 'over-select' must be 0 with secure.enabled: nobody is asked in vain")
        if settings.data.clients > MAX_CLIENTS:
            raise OptionError(f"secure.enabled is for up to {MAX_CLIENTS} clients, not {settings.data.clients}")
        found = read_roster(roster)
        if len(found) < (needed := settings.secure.min_clients):
            raise OptionError(
                f"secure.min_clients is {needed}, but the roster has only {len(found)} devices: nothing would ever be"
                " opened"
            )
        return cls(secrets.token_bytes(RUN_BYTES), found, config)

    def check(self, introduction: Introduction) -> None:
        """Refuse a device whose key the others would refuse: one such would spoil the round of all."""
        client = introduction.client
        if client not in self.roster:
            raise OptionError(f"client {client} is not on the roster of this run; it is after the next ./run.sh")
        if not introduction.key:
            raise OptionError("it sent no key for secure sums: it has no resident trainer, or runs another app")
        check_key(self.roster[client], self.name, client, introduction.key, introduction.signature)

    def engine(
        self,
        grid: Grid,
        trainer: Trainer,
        nodes: Callable[[], Mapping[int, int]],
        attendance: Attendance,
        log: Callable[[str], None],
    ) -> SecureEngine:
        """The engine that trains the rounds of the run."""
        config = self.config
        return SecureEngine(
            grid,
            trainer,
            nodes=nodes,
            keys=lambda: {own.client: (own.key, own.signature) for own in attendance.present.values()},
            run_name=self.name,
            opened=OpenedRounds(Path(config.out)),
            forget=attendance.forget,
            min_answers=config.least_clients,
            training=Waiting(config.quorum, config.patience_seconds, config.round_seconds),
            opening=Waiting(
                config.quorum, min(config.patience_seconds, config.opening_seconds), config.opening_seconds
            ),
            log=log,
            on_round_end=attendance.end_round,
        )
