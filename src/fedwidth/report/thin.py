"""Fewer points for the same picture: every bucket keeps its smallest and its largest value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def thin(columns: Sequence[NDArray[np.float64]], most: int) -> NDArray[np.intp]:
    """Which points to draw, at most `most`, in order; all of them where there are no more.

    The law: for each column the smallest and the largest finite value of each bucket is drawn, so also those of the
    whole; the first and the last point stay; a bucket without any finite value keeps a point, so a gap stays a gap.

    >>> thin([np.array([0.0, 9.0, 1.0, 2.0, -5.0, 3.0, 2.0, 2.0, 2.0])], 6).tolist()
    [0, 1, 4, 5, 6, 8]
    """
    points = len(columns[0])
    if points <= most:
        return np.arange(points)
    buckets = max(1, (most - 2) // (2 * len(columns)))
    kept = {0, points - 1}
    for bucket in np.array_split(np.arange(points), buckets):
        for column in columns:
            values = column[bucket]
            finite = np.flatnonzero(np.isfinite(values))
            if len(finite):
                kept |= {bucket[finite[values[finite].argmin()]], bucket[finite[values[finite].argmax()]]}
            else:
                kept.add(bucket[0])
    return np.array(sorted(kept), dtype=np.intp)
