"""Who has what, as text for a terminal."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fedwidth.data.records import Data
from fedwidth.data.shares import Partition

LEVELS = "·░▒▓█"


def partition_picture(data: Data, partition: Partition, width: int = 80, shown: int = 40) -> str:
    """A line for each client (at most `shown`, evenly chosen) and a summary.

    With one label a sample a line shows how much of each label the client has, █ the most that any client has of a
    label; otherwise a bar of its number of samples.
    """
    clients = np.arange(len(partition))
    if len(clients) > shown:
        clients = np.linspace(0, len(partition) - 1, shown).round().astype(int)
    labelled = partition.targets.dim() == 1
    body = _grid(data, partition, clients, width) if labelled else _bars(partition, clients, width)
    lines = [*body, ""]
    if len(clients) < len(partition):
        lines.append(f"shown: {len(clients)} of {len(partition)} clients")
    lines.append(
        f"{data.name}, {partition.name}: {len(partition)} clients, {100 * partition.used:.1f} % of the data used"
    )
    for name, held in (("validation", partition.validation), ("public", partition.public)):
        if len(held):
            lines.append(f"{name + ' samples:':<24} {len(held)}")
    lines.append(f"samples per client:      {_range(partition.sizes)}")
    lines.append(f"test samples per client: {_range(partition.test.sizes)}")
    if labelled:
        lines.append(f"labels per client:       {_range(labels_per_client(partition))}")
    return "\n".join(lines)


def labels_per_client(partition: Partition) -> np.ndarray:
    """How many labels each client has in training, for data with one label a sample."""
    labels = partition.targets.numpy()[partition.train.samples.numpy()]
    client = np.repeat(np.arange(len(partition)), partition.sizes.numpy())
    pairs = np.unique(client * (labels.max() + 1) + labels)
    return np.bincount(pairs // (labels.max() + 1), minlength=len(partition))


def _grid(data: Data, partition: Partition, clients: np.ndarray, width: int) -> list[str]:
    targets = partition.targets.numpy()
    counts = np.stack([np.bincount(targets[partition[int(c)].numpy()], minlength=data.classes) for c in clients])
    name = max(len("client"), len(str(len(partition))))
    room = max(width - name - 12, 10)
    cell = 2 if 2 * data.classes <= room else 1
    together = -(-data.classes * cell // room)  # labels that share a column
    columns = np.add.reduceat(counts, np.arange(0, data.classes, together), axis=1)
    levels = np.ceil(columns / columns.max() * (len(LEVELS) - 1)).astype(int)
    step = 1 if cell == 2 and data.classes <= 10 else 10
    heads = "".join(str(column * together).ljust(step * cell) for column in range(0, columns.shape[1], step))
    lines = [f"{'client':>{name}}  {heads.rstrip():<{columns.shape[1] * cell}}  samples"]
    for client, row, size in zip(clients, levels, counts.sum(axis=1), strict=True):
        cells = "".join(LEVELS[level].ljust(cell) for level in row)
        lines.append(f"{client:>{name}}  {cells}  {size:>7}")
    if together > 1:
        lines.append(f"each column: {together} labels")
    return lines


def _bars(partition: Partition, clients: np.ndarray, width: int) -> list[str]:
    sizes = partition.sizes.numpy()[clients]
    name = max(len("client"), len(str(len(partition))))
    room = max(width - name - 12, 10)
    lines = [f"{'client':>{name}}  samples"]
    for client, size in zip(clients, sizes, strict=True):
        lines.append(f"{client:>{name}}  {size:>7}  {'█' * max(1, round(room * size / sizes.max()))}")
    return lines


def _range(values: np.ndarray | Tensor) -> str:
    numbers = np.asarray(values)
    return f"min {numbers.min()}, median {np.median(numbers):g}, max {numbers.max()}"
