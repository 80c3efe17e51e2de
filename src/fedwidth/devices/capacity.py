"""What clients can afford, and who takes part: capacities from a short text, and draws that need no table of clients.

A capacity is the share of the server's width that a client trains. `Capacities.parse` reads

    a1-b1-c1-d1-e1    letters for 1, 1/2, 1/4, 1/8, 1/16, each followed by its sampling weight;
                      weight 0 is allowed: a0-e1 says that the server's model is larger than every client's
    1:1 1/16:9        capacities with weights, separated by spaces; without a weight: 1.
                      A server model gamma times the clients' (FedRolex section 4.4) is 1/gamma: 1/4:1
    rho:0.3           a share of 0.3 at full width and the rest at 1/16 (FedRolex section 4.3)
    household         6, 10, 11, 18 and 55 % at the five letters' capacities (FedRolex Fig. 7)

and a list of numbers is the capacity of each client.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from numbers import Real

import numpy as np

from fedwidth.errors import CapacityError, OptionError
from fedwidth.randomness import numpy_generator

LETTERS = {"a": 1.0, "b": 1 / 2, "c": 1 / 4, "d": 1 / 8, "e": 1 / 16}
HOUSEHOLD = "a6-b10-c11-d18-e55"
ALLOWED = "letters a to e with weights such as 'a1-b1-e2', numbers such as '1:1 1/16:9', 'rho:0.3' or 'household'"

MAX_WEIGHT = 1e9

_DECIMAL = re.compile(r"(\d+\.?\d*|\.\d+)(e-?\d{1,2})?", re.ASCII)
_LETTER_MIX = re.compile(r"[a-e]\d+(\.\d+)?(-[a-e]\d+(\.\d+)?)*", re.ASCII)


@dataclass(frozen=True)
class Capacities:
    """The capacities clients may have and how often each occurs; weights are relative, and 0 means nobody."""

    values: tuple[float, ...]
    weights: tuple[float, ...]
    by_client: tuple[float, ...] | None = None
    """The capacity of each client, where it is given and not drawn."""

    @classmethod
    def parse(cls, text: str | Sequence[float | str]) -> Capacities:
        """Read a mix of capacities (see the top of this file), or a list with the capacity of each client.

        >>> Capacities.parse("a0-e1")
        Capacities(values=(1.0, 0.0625), weights=(0.0, 1.0), by_client=None)
        >>> Capacities.parse("1:1 1/4:3").weights
        (1.0, 3.0)
        >>> Capacities.parse([1.0, "1/4", 0.25])
        Capacities(values=(1.0, 0.25), weights=(1.0, 2.0), by_client=(1.0, 0.25, 0.25))
        """
        if not isinstance(text, str):
            return cls._of_clients(text)
        try:
            pairs = _pairs(text.strip())
        except CapacityError as error:
            raise OptionError(f"capacities '{text}': {error}; allowed: {ALLOWED}") from None
        values, weights = zip(*pairs, strict=True)
        if len(set(values)) < len(values):
            raise OptionError(f"capacities '{text}' name a capacity twice: give each one weight")
        if not any(weights):
            raise OptionError(f"capacities '{text}' give every capacity the weight 0: at least one must be above 0")
        return cls(values, weights)

    @classmethod
    def _of_clients(cls, listed: Sequence[float | str]) -> Capacities:
        try:
            own = tuple(map(read_capacity, listed))
        except CapacityError as error:
            raise OptionError(f"in the list of clients' capacities {error}") from None
        if not own:
            raise OptionError("the list names no client's capacity")
        counts = Counter(own)
        values = tuple(sorted(counts, reverse=True))
        return cls(values, tuple(float(counts[value]) for value in values), by_client=own)

    def enrolled(self, excluded: Sequence[float] = ()) -> tuple[float, ...]:
        """The capacities that clients who take part may have, largest first.

        >>> Capacities.parse("a0-b1-e3").enrolled()
        (0.5, 0.0625)
        """
        there = (value for value, weight in zip(self.values, self.weights, strict=True) if weight > 0)
        return tuple(sorted((value for value in there if value not in excluded), reverse=True))

    def share_of_widest(self, excluded: Sequence[float] = ()) -> float:
        """The share of the clients who take part that have the largest capacity among them.

        >>> Capacities.parse("a1-b1-e3").share_of_widest(), Capacities.parse("a1-b1-e3").share_of_widest([1.0])
        (0.2, 0.25)
        """
        weights = dict(zip(self.values, self.weights, strict=True))
        there = self.enrolled(excluded)
        return float(weights[there[0]] / sum(weights[value] for value in there))

    def of_client(self, client: int, clients: int, *, round: int, seed: int, dynamic: bool) -> float:
        """The capacity of one client in one round.

        It is the same in every round (see `assign`), or, if `dynamic`, drawn anew from (seed, round, client) alone.
        """
        if not 0 <= client < clients:
            raise OptionError(f"client {client} is not one of {clients} clients, counted from 0")
        if self.by_client is not None:
            return self.by_client[client]
        if not dynamic:
            return self.values[int(_levels(self, clients, seed)[client])]
        drawn = numpy_generator(seed, "capacity", round, client).random() * sum(self.weights)
        level = int(np.searchsorted(np.cumsum(self.weights), drawn, side="right"))
        return self.values[min(level, self._last)]

    def assign(self, clients: int, seed: int) -> np.ndarray:
        """The fixed capacity of every client: as listed, else as many of each as `shares` says, in random order."""
        if self.by_client is not None:
            return np.asarray(self.by_client)
        return np.take(np.asarray(self.values), _levels(self, clients, seed))

    def shares(self, clients: int) -> tuple[int, ...]:
        """How many clients have each capacity: exact shares, rounded by largest remainder.

        >>> Capacities.parse("household").shares(10)
        (1, 1, 1, 2, 5)
        """
        weights = [Fraction(weight) for weight in self.weights]
        quotas = [weight * clients / sum(weights) for weight in weights]
        counts = [math.floor(quota) for quota in quotas]
        neediest = sorted(range(len(quotas)), key=lambda level: counts[level] - quotas[level])
        for level in neediest[: clients - sum(counts)]:
            counts[level] += 1
        return tuple(counts)

    @property
    def _last(self) -> int:
        """The last capacity that anybody has: rounding in a sum of weights must not give one that nobody has."""
        return max(level for level, weight in enumerate(self.weights) if weight)


def describe_mix(written: str | Sequence[float], width: float = 1.0) -> str:
    """The capacities of a run in a few characters: a mix as it is written, a list as how many clients have which.

    Beside a server's model of less than the full `width` they are what devices train of the model at full width.

    >>> describe_mix("a1-e1"), describe_mix([0.25, 1.0, 0.25])
    ('a1-e1', '1:1 1/4:2')
    >>> describe_mix("a1-b1", 1 / 4), describe_mix("a1-e3", 1 / 2)
    ('c1-d1', '1/2:1 1/32:3')
    """
    if not isinstance(written, str):
        counts = sorted(Counter(written).items(), reverse=True)
        return " ".join(f"{_shown(value * width)}:{count}" for value, count in counts)
    if width == 1:
        return written
    mix = Capacities.parse(written)
    pairs = [(value * width, f"{weight:g}") for value, weight in zip(mix.values, mix.weights, strict=True) if weight]
    letters = {value: letter for letter, value in LETTERS.items()}
    if all(value in letters for value, _ in pairs):
        return "-".join(f"{letters[value]}{weight}" for value, weight in pairs)
    return " ".join(f"{_shown(value)}:{weight}" for value, weight in pairs)


def _shown(capacity: float) -> str:
    return str(Fraction(capacity).limit_denominator(1000))


def parse_capacity(text: str, also: str = "") -> float:
    """A capacity written as a number or a fraction; a message names what is allowed there `also`.

    >>> parse_capacity("1/16")
    0.0625
    """
    capacity = _number(text.strip(), f"a capacity is a number such as 0.25 or 1/4{also}")
    if not 0 < capacity <= 1:
        raise CapacityError(f"a capacity must be above 0 and at most 1, not '{text}'")
    return capacity


def read_capacity(written: float | str) -> float:
    """A capacity where both numbers and text are allowed, as in a list of them.

    >>> read_capacity("1/16"), read_capacity(0.25)
    (0.0625, 0.25)
    """
    if isinstance(written, str):
        return parse_capacity(written)
    if isinstance(written, bool) or not isinstance(written, Real) or not 0 < written <= 1:
        raise CapacityError(f"a capacity must be above 0 and at most 1, such as 0.25 or '1/4', not {written!r}")
    return written


def sample_clients(clients: int, per_round: int, *, round: int, seed: int) -> list[int]:
    """The clients that take part in a round: drawn uniformly without replacement, in order of drawing.

    >>> sorted(sample_clients(3, 3, round=0, seed=1))
    [0, 1, 2]
    """
    if not 1 <= per_round <= clients:
        raise OptionError(f"{per_round} clients a round cannot be drawn from {clients} clients")
    # Few out of many: numpy draws with a set of what it has seen, not with a list of all clients.
    drawn: list[int] = numpy_generator(seed, "cohort", round).choice(clients, per_round, replace=False).tolist()
    return drawn


def sample_by_chance(clients: int, rate: float, *, round: int, seed: int) -> list[int]:
    """The clients that take part in a round where each does with this probability, whoever else does; in random order.

    >>> sorted(sample_by_chance(3, 1.0, round=0, seed=1)), sample_by_chance(3, 0.0, round=0, seed=1)
    ([0, 1, 2], [])
    """
    generator = numpy_generator(seed, "poisson cohort", round)
    (drawn,) = np.nonzero(generator.random(clients) < rate)
    found: list[int] = generator.permutation(drawn).tolist()
    return found


@lru_cache(maxsize=8)  # so that a round asks for its cohort only; one byte a client
def _levels(capacities: Capacities, clients: int, seed: int) -> np.ndarray:
    """The number of each client's capacity among `values`."""
    levels = np.arange(len(capacities.values), dtype=np.min_scalar_type(len(capacities.values)))
    by_client = np.repeat(levels, capacities.shares(clients))
    numpy_generator(seed, "capacities").shuffle(by_client)
    by_client.flags.writeable = False
    return by_client


def _pairs(text: str) -> list[tuple[float, float]]:
    """The (capacity, weight) pairs that a mix stands for."""
    if text == "household":
        text = HOUSEHOLD
    if _LETTER_MIX.fullmatch(text):
        return [(LETTERS[part[0]], _weight(part[1:])) for part in text.split("-")]
    if text.startswith("rho:"):
        rho = _weight(text.removeprefix("rho:"))
        if rho > 1:
            raise CapacityError(f"rho is a share from 0 to 1, not '{text.removeprefix('rho:')}'")
        return [(LETTERS["a"], rho), (LETTERS["e"], 1 - rho)]
    parts = [part.partition(":") for part in text.replace(",", " ").split()]
    if not parts:
        raise CapacityError("no capacity is named")
    return [(parse_capacity(capacity), _weight(weight if colon else "1")) for capacity, colon, weight in parts]


def _weight(text: str) -> float:
    weight = _number(text, "a weight is a number from 0 on")
    if weight > MAX_WEIGHT:
        raise CapacityError(f"a weight must be at most {MAX_WEIGHT:.0f}, not '{text}'")
    return weight


def _number(text: str, expected: str) -> float:
    numerator, slash, denominator = text.partition("/")
    parts = [numerator, denominator] if slash else [numerator]
    if not all(_DECIMAL.fullmatch(part) for part in parts) or (slash and not float(denominator)):
        raise CapacityError(f"{expected}, not '{text}'")
    return float(numerator) / float(denominator) if slash else float(numerator)
