"""Who takes part in each round of a run, and with which capacity, as its settings draw it."""

from __future__ import annotations

from dataclasses import dataclass

from fedwidth.devices.capacity import Capacities, sample_by_chance, sample_clients
from fedwidth.settings import DeviceSettings, Settings


@dataclass(frozen=True)
class Cohorts:
    """The cohorts of a run, drawn from (seed, round) alone: any round can be asked for at any time."""

    capacities: Capacities
    clients: int
    """How many there are in all."""
    settings: DeviceSettings
    seed: int

    @classmethod
    def of(cls, settings: Settings) -> Cohorts:
        """The cohorts of a run with these settings, for those who have neither its data nor its clients."""
        capacities = Capacities.parse(settings.devices.capacities)
        return cls(capacities, settings.data.clients, settings.devices, settings.seed)

    def of_round(self, round: int) -> list[tuple[int, float]]:
        """The clients of a round, each with the capacity it has in it; those of excluded capacities are left out.

        >>> devices = DeviceSettings(per_round=2, excluded=[1.0])
        >>> cohorts = Cohorts(Capacities.parse([1.0, 0.25, 0.5]), 3, devices, seed=1)
        >>> {client for round in range(9) for client, _ in cohorts.of_round(round)}
        {1, 2}
        """
        if self.settings.sampling == "poisson":
            drawn = sample_by_chance(self.clients, self.rate, round=round, seed=self.seed)
        else:
            drawn = sample_clients(self.clients, self.settings.per_round, round=round, seed=self.seed)
        pairs = [(client, self.capacity_of(client, round)) for client in drawn]
        return [pair for pair in pairs if pair[1] not in self.settings.excluded]

    @property
    def rate(self) -> float:
        """The probability that a client takes part in a round."""
        return self.settings.per_round / self.clients

    def expected(self) -> dict[float, float]:
        """How many clients of each capacity that is not excluded are expected in a round.

        >>> Cohorts(Capacities.parse("1:1 1/4:3"), 8, DeviceSettings(per_round=2), seed=1).expected()
        {1.0: 0.5, 0.25: 1.5}
        """
        capacities, settings = self.capacities, self.settings
        if settings.dynamic:
            whole = sum(capacities.weights)
            number = {c: self.clients * w / whole for c, w in zip(capacities.values, capacities.weights, strict=True)}
        else:
            own = capacities.assign(self.clients, self.seed).tolist()
            number = {capacity: own.count(capacity) for capacity in capacities.values}
        return {c: self.rate * n for c, n in number.items() if n and c not in settings.excluded}

    @property
    def enrolled(self) -> tuple[float, ...]:
        """The capacities of the clients that may take part, largest first, without those of the mix that no client has.

        >>> Cohorts(Capacities.parse("1:8 1/2:1 1/4:8"), 4, DeviceSettings(per_round=2), seed=1).enrolled
        (1.0, 0.25)
        """
        there = self.expected() or self.capacities.enrolled(self.settings.excluded)
        return tuple(sorted(there, reverse=True))

    def capacity_of(self, client: int, round: int) -> float:
        """The capacity a client has in a round."""
        return self.capacities.of_client(
            client, self.clients, round=round, seed=self.seed, dynamic=self.settings.dynamic
        )
