"""How much one client may count: the norm of its whole update is bounded, and the bound may follow the clients.

A client's change d counts as d min(1, C / |d|), all tensors together, whatever its width. With adaptive clipping
(Andrew et al. 2021) the bound C goes where a share gamma of all updates is shorter:

    C <- C exp(-eta (b - gamma)),    b = (sum of (bit - 1/2) + noise) / n + 1/2

where a client's bit is 1 if its update was not clipped and n is how many clients are expected. The noise of the bits,
of standard deviation s, is paid for: one client moves their sum by 1/2, so that updates with noise z' and bits together
are as private as updates with noise z alone where z^-2 = z'^-2 + (2 s)^-2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from fedwidth.errors import OptionError

OF_BITS = 1 / 20
"""The noise of the bits, as a share of the clients that are expected, where nothing else is said."""


def norm_of(changes: Mapping[str, Tensor]) -> float:
    """The Euclidean norm of all changes together, in double precision."""
    return math.sqrt(sum(float(change.double().square().sum()) for change in changes.values()))


def factor(norm: float, clip: float) -> float:
    """What a change of this norm is multiplied by, so that it is no longer than the clip.

    >>> factor(0.0, 1.0), factor(0.5, 1.0), round(factor(4.0, 1.0), 6)
    (1.0, 1.0, 0.25)
    """
    # A little less, so that rounding in the product and in its norm does not make it longer after all.
    return 1.0 if norm <= clip else clip / norm * (1 - 1e-12)


def adapted(clip: float, *, unclipped: float, quantile: float, speed: float) -> float:
    """The next clip after a round in which this (noisy) share of updates was not clipped.

    >>> adapted(1.0, unclipped=0.9, quantile=0.5, speed=0.2) < 1 < adapted(1.0, unclipped=0.1, quantile=0.5, speed=0.2)
    True
    """
    return clip * math.exp(-speed * (unclipped - quantile))


def noise_of_updates(noise: float, bits: float) -> float:
    """The noise of updates that, with bits of this noise, costs what `noise` alone would.

    >>> round(noise_of_updates(1.0, 5.0), 4)
    1.005
    """
    if not 2 * bits > noise:
        raise OptionError(
            f"privacy.bits_noise is {bits:g} and must be above half of privacy.noise ({noise / 2:g}): the share of"
            " clipped updates alone would cost more; take more clients a round, or privacy.quantile = 0"
        )
    return 1 / math.sqrt(1 / noise**2 - 1 / (2 * bits) ** 2)
