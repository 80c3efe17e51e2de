"""Who takes part in each round of a run, and with which capacity, as its settings draw it."""

from __future__ import annotations

from dataclasses import dataclass

from fedwidth.devices.capacity import Capacities, sample_clients
from fedwidth.settings import DeviceSettings


@dataclass(frozen=True)
class Cohorts:
    """The cohorts of a run, drawn from (seed, round) alone: any round can be asked for at any time."""

    capacities: Capacities
    clients: int
    """How many there are in all."""
    settings: DeviceSettings
    seed: int

    def of_round(self, round: int) -> list[tuple[int, float]]:
        """The clients of a round, each with the capacity it has in it; those of excluded capacities are left out.

        >>> devices = DeviceSettings(per_round=2, excluded=[1.0])
        >>> cohorts = Cohorts(Capacities.parse([1.0, 0.25, 0.5]), 3, devices, seed=1)
        >>> {client for round in range(9) for client, _ in cohorts.of_round(round)}
        {1, 2}
        """
        drawn = sample_clients(self.clients, self.settings.per_round, round=round, seed=self.seed)
        pairs = [(client, self.capacity_of(client, round)) for client in drawn]
        return [pair for pair in pairs if pair[1] not in self.settings.excluded]

    def capacity_of(self, client: int, round: int) -> float:
        """The capacity a client has in a round."""
        return self.capacities.of_client(
            client, self.clients, round=round, seed=self.seed, dynamic=self.settings.dynamic
        )
