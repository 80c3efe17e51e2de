"""What the protocol would give, without masks, which cancel, and without keys: a simulation needs no cryptography."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedwidth.secure.rules import open_segments, threshold


@dataclass
class Sums:
    """The sums of a round's segments, added up in any order: whole numbers modulo 2^32."""

    held: Mapping[int, Sequence[int]]
    """The segments that each client of the round holds, whether it sends anything or not."""
    min_clients: int
    every_class: bool = False

    def __post_init__(self) -> None:
        self.totals: dict[int, NDArray[np.uint32]] = {}
        self.survivors: list[int] = []

    def add(self, client: int, words: Mapping[int, NDArray[np.uint32]]) -> None:
        """Add what one client sends: the words of each segment that it holds."""
        for segment in self.held[client]:
            if segment in self.totals:
                self.totals[segment] += words[segment]
            else:
                self.totals[segment] = words[segment].copy()
        self.survivors.append(client)

    def opened(self) -> dict[int, NDArray[np.uint32]]:
        """The sums that are opened; none at all where fewer clients have sent than must answer."""
        if len(self.survivors) < threshold(len(self.held)):
            return {}
        found = open_segments(self.held, self.survivors, self.min_clients, every_class=self.every_class)
        return {segment: self.totals[segment] for segment in found}
