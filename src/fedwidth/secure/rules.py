"""When something is opened: the rules that a device keeps by itself, the server follows and the simulation imitates.

Two thirds of all clients of a round, and one more, must answer before anything is opened. Then a server that tells some
devices that a client is alive and others that it is gone gets no two sets of answers that are large enough, as long as
less than a third of the clients are on its side. A segment opens where at least m of its holders have sent theirs; with
`every_class` only where that is true of every width among them, so that even the difference of two sums hides m.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

MIN_CLIENTS = 2
"""A sum of one client hides nothing."""


def threshold(members: int) -> int:
    """How many of a round's clients must answer.

    >>> [threshold(members) for members in (2, 3, 10, 100)]
    [2, 3, 7, 67]
    """
    return 2 * members // 3 + 1


def open_segments(
    held: Mapping[int, Sequence[int]], survivors: Collection[int], min_clients: int, *, every_class: bool = False
) -> list[int]:
    """The segments that are opened, where each client holds those listed for it and these clients have sent theirs.

    >>> held = {1: (0,), 2: (0, 1), 3: (0, 1), 4: (0, 1, 2)}
    >>> open_segments(held, [1, 2, 3, 4], 2), open_segments(held, [2, 4], 2), open_segments(held, [1, 4], 2)
    ([0, 1], [0, 1], [0])
    >>> open_segments(held, [1, 2, 3, 4], 2, every_class=True)
    []
    """
    holders = Counter(segment for client in survivors for segment in held[client])
    found = {segment for segment, number in holders.items() if number >= min_clients}
    if every_class:
        sizes = Counter(tuple(held[client]) for client in survivors)
        found -= {segment for own, number in sizes.items() if number < min_clients for segment in own}
    return sorted(found)
