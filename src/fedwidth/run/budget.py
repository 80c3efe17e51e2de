"""The privacy of a run: what its rounds come to, when its budget is spent, and what is said of it.

How often each round was opened stands in privacy.json, which is written before a round begins: a run that is killed and
repeats a round has opened it twice.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwidth.devices.cohorts import Cohorts
from fedwidth.errors import OptionError, StateError
from fedwidth.files import write_whole
from fedwidth.models.static_norm import norms_of
from fedwidth.privacy.accounting import Accountant, gaussian_accountant, skellam_accountant
from fedwidth.privacy.noise import signal_to_noise
from fedwidth.privacy.spent import Spent
from fedwidth.run.folder import LEDGER
from fedwidth.settings import Settings
from fedwidth.training.rounds import Rounds
from fedwidth.training.server.private import check_real
from fedwidth.training.server.state import Server

if TYPE_CHECKING:
    from fedwidth.experiment import Experiment

BY_ROUNDS = "add-or-remove"
"""The adjacency under which all rounds count for every client, by the probability to be drawn for one."""


@dataclass(frozen=True)
class Budget:
    """What a private run costs, and what it may."""

    settings: Settings
    cohorts: Cohorts
    accountant: Accountant
    best_signal_to_noise: float
    """That of clients which all agree."""
    collects: bool
    """Whether statistics of training data are collected when the model is measured."""

    @classmethod
    def of(cls, experiment: Experiment) -> Budget:
        """The budget of a run, checked: that it can begin."""
        settings, rounds, cohorts = experiment.settings, experiment.rounds, experiment.cohorts
        check_real(experiment.first_state, rounds.trained)
        private = rounds.private_round(experiment.first_server())
        if not settings.secure.enabled:
            _ = private.deviation  # refuses what does not go together
        best = signal_to_noise(settings.privacy.noise, private.denominators())
        found = cls(settings, cohorts, _accountant(settings, rounds, cohorts), best, bool(norms_of(experiment.model)))
        if settings.privacy.epsilon and found.last_round(experiment.first_server()) == 0:
            raise OptionError(
                f"privacy.epsilon is {settings.privacy.epsilon:g}, and the first round alone costs"
                f" {found.accountant.epsilon(1):.4g}: take more noise or a larger budget"
            )
        return found

    def epsilon(self, spent: Spent) -> float:
        """What was spent."""
        return self.accountant.epsilon(self._count(spent))

    def last_round(self, server: Server, *, known: bool = True) -> int:
        """After how many rounds the run ends: all, or as many as the budget allows.

        Where it is not `known` who will be drawn (real devices come and go), whoever was drawn most often so far may
        be drawn every time.
        """
        privacy, rounds = self.settings.privacy, self.settings.rounds
        if not privacy.epsilon:
            return rounds
        allowed = self.accountant.affords(privacy.epsilon, server.spent.rounds + rounds)
        spent = server.spent
        if not known:
            return min(rounds, server.round + max(0, allowed - self._count(spent)))
        for round in range(server.round, rounds):
            spent = spent.after(client for client, _ in self.cohorts.of_round(round))
            if self._count(spent) > allowed:
                return round
        return rounds

    def facts(self, server: Server, *, last: int) -> dict[str, Any]:
        """What the summary says of a run's privacy, which ends after the `last` round."""
        settings, privacy, spent = self.settings, self.settings.privacy, server.spent
        stopped = (
            f"the budget of epsilon = {privacy.epsilon:g} was spent after {server.round} of {settings.rounds} rounds"
        )
        return {
            "epsilon": self.epsilon(spent),
            "delta": privacy.delta,
            "noise": privacy.noise,
            "clip": server.clip or privacy.clip,
            "rounds": spent.rounds,
            "counted": self._count(spent),
            "rate": self.cohorts.rate,
            "sampling": settings.devices.sampling,
            "amplified": privacy.adjacency == BY_ROUNDS,
            "adjacency": privacy.adjacency,
            "accountant": self.accountant.name,
            "accountant_version": self.accountant.version,
            "against": self.against,
            "not_covered": self.not_covered,
            "signal_to_noise": self.best_signal_to_noise,
            "budget": privacy.epsilon or None,
            "stopped": stopped if last <= server.round < settings.rounds else None,
        }

    @property
    def against(self) -> str:
        """Whom the model tells little about a client."""
        if self.settings.secure.enabled:
            least = self.settings.secure.min_clients
            return (
                f"whoever reads the models, and the server, where {least} clients of each sum that it opens are honest"
            )
        return "whoever reads the models; the server, which adds the noise, is trusted"

    @property
    def not_covered(self) -> list[str]:
        """What the number does not speak of."""
        return [
            "metrics, which a simulation knows from the clients' data: losses, accuracies, who took part",
            "settings that were chosen by looking at the same clients' data",
            "somebody who knows the seed, from which noise and draws follow",
            "rounding: noise is drawn as numbers of 64 bits by a generator that is not cryptographic",
            *(
                ["statistics of batch norms, collected from training data to measure the model"]
                if self.collects
                else []
            ),
        ]

    def _count(self, spent: Spent) -> int:
        """What the accountant is to add up: all rounds, or those that the client was drawn for that was most often."""
        return spent.rounds if self.settings.privacy.adjacency == BY_ROUNDS else max(spent.drawn.values(), default=0)


def _accountant(settings: Settings, rounds: Rounds, cohorts: Cohorts) -> Accountant:
    privacy = settings.privacy
    if rounds.device_noise is not None:
        length = sum(math.prod(rounds.plan.shapes[name]) for name in rounds.trained)
        return skellam_accountant(
            noise=privacy.noise, sensitivity=rounds.device_noise.sensitivity, length=length, delta=privacy.delta
        )
    rate = cohorts.rate if privacy.adjacency == BY_ROUNDS else 1.0
    return gaussian_accountant(privacy.accountant, noise=privacy.noise, rate=rate, delta=privacy.delta)


def write_ledger(folder: Path, spent: Spent) -> None:
    """Make it last what was opened."""
    write_whole(folder / LEDGER, json.dumps(spent.facts()) + "\n")


def read_ledger(folder: Path) -> Spent:
    """What was opened, by the file in a folder; nothing where there is none."""
    path = folder / LEDGER
    if not path.exists():
        return Spent()
    try:
        return Spent.of(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise StateError(f"{path}, which says what privacy was spent, cannot be read: {error}") from error
