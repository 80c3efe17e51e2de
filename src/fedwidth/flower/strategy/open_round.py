"""A round that has been sent out and not come back yet: its tasks, and the messages that carry them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor

from fedwidth.flower.strategy.orders import KEY, Order
from fedwidth.methods import Reference, Task

State = Mapping[str, Tensor]


@dataclass
class OpenRound:
    """What was sent to whom."""

    tasks: Sequence[Task] = ()
    cohort: Sequence[tuple[int, float]] = ()
    """The clients that were drawn, in order, each with its capacity."""
    by_node: Mapping[int, Task] = field(default_factory=dict)
    sent: dict[str, State] = field(default_factory=dict)
    """The sub-models by the keys of their parts."""

    def messages(
        self,
        kind: str,
        config: ConfigRecord,
        *,
        reference: Reference,
        seed: int,
        enrolled: tuple[float, ...],
        tied: Collection[str],
        keys: tuple[str, str],
    ) -> list[Message]:
        """One message for each node: its sub-model, and the order in the config that every node gets.

        `keys` are the names of both records; tensors that are `tied` to others are not sent twice.
        """
        arrays = {
            key: ArrayRecord({name: array_of(tensor) for name, tensor in sub.items() if name not in tied})
            for key, sub in self.sent.items()
        }
        messages = []
        for node, task in self.by_node.items():
            order = Order.of(
                task,
                reference,
                round=max(0, int(config["server-round"]) - 1),
                clients=len(self.tasks),
                seed=seed,
                enrolled=enrolled,
            )
            own = ConfigRecord({**config, KEY: order.text()})
            content = RecordDict({keys[0]: arrays[task.part.key], keys[1]: own})
            messages.append(Message(content, dst_node_id=node, message_type=kind))
        return messages


def array_of(tensor: Tensor) -> Array:
    """A tensor as Flower sends it."""
    return Array(tensor.detach().cpu().numpy())
