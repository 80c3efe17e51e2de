"""What a message of the Strategy says beside the tensors: an order, as text in the message's one config record.

Flower's own mods for clients want exactly one record of each kind in a message, so nothing is added but one key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fedwidth.errors import ClientError, OptionError
from fedwidth.methods import Method, Reference, Task, method, methods

KEY = "fedwidth"
"""The key of the config record that holds the order, and the action of the query that asks nodes what they can afford.
"""


@dataclass(frozen=True)
class Order:
    """What a client is told about the sub-model that it is sent."""

    name: str
    """The method's name."""
    capacity: float
    round: int
    client: int
    place: int
    clients: int
    """The size of the round's cohort, in which the client has its place."""
    seed: int
    local: str | None = None
    """The method whose local rule trains the sub-model, where that is another one."""
    options: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, int] | None = None
    """How many units the sub-model has of each width group; None where it is no slice of the model."""
    enrolled: tuple[float, ...] = (1.0,)
    """The capacities that clients may have."""

    @classmethod
    def of(
        cls, task: Task, reference: Reference, *, round: int, clients: int, seed: int, enrolled: tuple[float, ...]
    ) -> Order:
        """The order for a task."""
        counts = getattr(task.part, "counts", None)
        return cls(
            reference.name,
            float(task.capacity),
            round,
            task.client,
            task.place,
            clients,
            seed,
            local=reference.local,
            options=reference.options,
            counts=None if counts is None else dict(counts),
            enrolled=enrolled,
        )

    def text(self) -> str:
        """The order as it is sent."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: object) -> Order:
        """The order in a message."""
        try:
            found = json.loads(str(text))
            return cls(**{**found, "enrolled": tuple(found["enrolled"])})
        except (ValueError, TypeError, KeyError):
            raise ClientError("the message holds no order of fedwidth's Strategy: is the server using it?") from None

    def method(self, own: Method | None) -> Method:
        """The method that is meant: one of the package, or the app's own, which no message can name.

        A server could else have a device import whatever it likes.
        """
        if own is not None:
            return own
        for name in filter(None, (self.name, self.local)):
            if name not in methods():
                raise OptionError(f"'{name}' is no method of the package: give fitted(…, method=METHOD) on the client")
        return method(self.name, local=self.local, **dict(self.options))
