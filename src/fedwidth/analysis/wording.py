"""Numbers as people read them, the same in every sentence and table: points, means over seeds, counts, durations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import mean, stdev

from fedwidth.objectives.metric import ACCURACY, Measure

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def over_seeds(values: Iterable[float], digits: int = 2, metric: Measure = ACCURACY) -> str:
    """The mean of what several seeds measured, and their standard deviation; of one seed there is no deviation.

    >>> over_seeds([1.0, 3.0]), over_seeds([2.0]), over_seeds([50.0, 52.0], digits=1)
    ('2.00 ± 1.41', '2.00', '51.0 ± 1.4')
    """
    found = list(values)
    return with_spread(mean(found), stdev(found) if len(found) > 1 else None, digits, metric)


def with_spread(number: float, spread: float | None, digits: int = 2, metric: Measure = ACCURACY) -> str:
    """A number and its spread, where there is one.

    >>> with_spread(69.44, 1.5), with_spread(69.44, None)
    ('69.44 ± 1.50', '69.44')
    """
    return metric.digits(number, digits) + ("" if spread is None else f" ± {metric.digits(spread, digits)}")


def signed(points: float) -> str:
    """Points of accuracy with one digit and their sign.

    >>> signed(1.25), signed(-0.31), signed(-0.01)
    ('+1.2', '−0.3', '0.0')
    """
    text = unsigned(points)
    return text if text == "0.0" or points < 0 else f"+{text}"


def unsigned(points: float) -> str:
    """Points of accuracy with one digit; of signs only a minus is shown, as a real one.

    >>> unsigned(1.25), unsigned(-0.31), unsigned(-0.01)
    ('1.2', '−0.3', '0.0')
    """
    text = f"{points:.1f}".replace("-", "−")
    return "0.0" if text == "−0.0" else text


def in_words(number: int) -> str:
    """A whole number, in letters up to ten.

    >>> in_words(3), in_words(12)
    ('three', '12')
    """
    return NUMBERS[number] if number < len(NUMBERS) else str(number)


def plural(count: int, word: str) -> str:
    """A number of things.

    >>> plural(1, "pair"), plural(2, "pair")
    ('1 pair', '2 pairs')
    """
    return f"{count} {word}{'' if count == 1 else 's'}"


def listed(names: Sequence[str], most: int = 4) -> str:
    """Names, the first few of many.

    >>> listed(["a", "b", "c"], 2), listed(["a, 1", "a, 2"])
    ('a, b and 1 more', 'a, 1; a, 2')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    between = "; " if any("," in name for name in names) else ", "
    return between.join(names[:most]) + more


def show_time(seconds: float) -> str:
    """A duration in seconds, minutes or hours.

    >>> show_time(0.123), show_time(40), show_time(150), show_time(9000)
    ('0.12 s', '40 s', '3 min', '2.5 h')
    """
    if 0 < seconds < 1:
        return f"{seconds:.2g} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{math.ceil(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def show_mebibytes(bytes: float) -> str:
    """Bytes in MiB with one digit behind the point, or as many as show that they are not nothing.

    >>> show_mebibytes(3 * 2**20), show_mebibytes(25_000), show_mebibytes(0)
    ('3.0', '0.024', '0.0')
    """
    found = bytes / 2**20
    return f"{found:.2g}" if 0 < found < 0.1 else f"{found:.1f}"
