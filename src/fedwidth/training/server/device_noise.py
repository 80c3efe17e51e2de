"""Noise that clients add to their words before these are hidden in secure sums, so that no server need be trusted.

A segment is opened where at least m of its holders have sent their words. Each of them adds noise of Skellam's
distribution with an m-th of the variance mu = (z S scale)^2, so that a sum of m has noise of mu, and a sum of more has
more. S is the norm to which a client's update is clipped, all words together: before rounding, and again after it.

A word need not be finer than the noise, whose deviation is at most 2^20: then Poisson's numbers are small enough to be
drawn exactly, and rounding is a millionth of it. Words have room for all clients at their clip and for noise of eight
deviations; beyond that a sum would wrap, which harms the model and not the clients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedwidth.errors import UpdateError
from fedwidth.privacy.noise import skellam_noise, whole_within
from fedwidth.randomness import numpy_generator
from fedwidth.secure.fixed_point import LARGEST, MAX_CLIENTS, FixedPoint
from fedwidth.settings import PrivacySettings, SecureSettings, Settings

MAX_DEVIATION = 2.0**20
ROOM = 8.0
"""Deviations of the noise of all clients together for which words have room."""


@dataclass(frozen=True)
class DeviceNoise:
    """What clients of a run do to their words; the same in every round, whoever takes part."""

    privacy: PrivacySettings
    secure: SecureSettings
    clients: int
    """How many may take part in a round."""
    seed: int = 0

    @property
    def point(self) -> FixedPoint:
        """How changes become words."""
        clip, room = min(self.secure.clip, self.privacy.clip), self.privacy.noise * self.privacy.clip
        spread = math.sqrt(max(self.clients, self.secure.min_clients) / self.secure.min_clients)
        for_sums = self.clients + math.ceil(ROOM * room * spread / clip)
        coarse = math.ceil(LARGEST * room / clip / MAX_DEVIATION)
        return FixedPoint(min(max(for_sums, coarse), MAX_CLIENTS), clip)

    @property
    def sensitivity(self) -> float:
        """How far one client can move the words of a sum, in Euclidean norm."""
        return self.privacy.clip * self.point.scale

    @property
    def variance(self) -> float:
        """That of the noise which one client adds to a word."""
        return (self.privacy.noise * self.sensitivity) ** 2 / self.secure.min_clients

    @classmethod
    def of(cls, settings: Settings) -> DeviceNoise | None:
        """The noise of a run's clients; None where sums are not both secure and private."""
        if not (settings.secure.enabled and settings.privacy.noise):
            return None
        devices = settings.devices
        many = settings.data.clients if devices.sampling == "poisson" else devices.per_round
        return cls(settings.privacy, settings.secure, many, settings.seed)

    def words(
        self,
        trained: NDArray[np.floating],
        start: NDArray[np.floating],
        *,
        client: int,
        round: int,
        drawn: np.random.Generator | None = None,
    ) -> tuple[NDArray[np.uint32], bool]:
        """The words of one client with its share of the noise, and whether its update was clipped.

        Real devices give what the noise is `drawn` from; simulated ones draw it from the run's seed.
        """
        clean, clipped = self.clean_words(trained, start)
        drawn = drawn or numpy_generator(self.seed, "device noise", round, client)
        # Modulo 2^32, as all that is done with words.
        return (clean + skellam_noise(drawn, self.variance, clean.size)).astype(np.uint32), clipped

    def clean_words(self, trained: NDArray[np.floating], start: NDArray[np.floating]) -> tuple[NDArray[np.int64], bool]:
        """The words before noise, no longer than `sensitivity`, and whether the update was clipped."""
        change = trained.astype(np.float64) - start
        if not np.isfinite(change).all():
            raise UpdateError("a change is not finite: it is not added to a secure sum")
        point, norm = self.point, float(np.linalg.norm(change))
        if norm > self.privacy.clip:
            change *= self.privacy.clip / norm
        beyond = np.abs(change) > point.clip
        np.clip(change, -point.clip, point.clip, out=change)
        return whole_within(change * point.scale, self.sensitivity), norm > self.privacy.clip or bool(beyond.any())
