"""The records that a task and its answer are sent as, and the checks of an answer before it counts.

down   task    token, round, client, capacity, the index's digest, units kept per group (a node need not know which)
       arrays  the sub-model's tensors by name, as raw bytes; tied ones once; `sent/NAME/TENSOR` for what the method
               sends beside them
up     answer  token, round, client, index as sent, weight, labels, samples seen, loss
       arrays  the trained tensors, same names, dtypes and shapes; `report/NAME/TENSOR` for what it reports beside them

The token is a secret between server and node, so that no other node can answer in its name. Nothing is pickled, and
nothing is made into a tensor before its name, dtype, shape and length are as expected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedwidth.core.tensor_bytes import TensorBytes
from fedwidth.core.updates import Update, check_update, weigh
from fedwidth.deployment.node.client_app import STYPE
from fedwidth.deployment.node.training import REPORT, SENT, grouped, with_tied
from fedwidth.deployment.node.wire import CODES
from fedwidth.errors import FedwidthError, UpdateError
from fedwidth.methods import Task
from fedwidth.printable import printable
from fedwidth.settings import ServerSettings
from fedwidth.training.batches import count_steps
from fedwidth.training.client import Trainer


@dataclass(frozen=True)
class Limits:
    """The limits of what an answer may hold."""

    norm: float = 10.0
    """Largest norm of the change, in multiples of the norm of what was sent (at least 1)."""
    samples: int = 1_000_000
    """Most samples that a client may claim for its weight, and for the number of its local steps."""
    overhead: int = 65_536
    """Most bytes beside the tensors."""


@dataclass(frozen=True)
class CheckedAnswer:
    """A client's answer to a task, after every check."""

    update: Update
    passes: int
    """How many samples the client has trained on, each counted as often as it was seen."""
    loss: float
    kept: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    """The client's own memory, by name and tensor, which the server keeps for it."""


def task_arrays(sub: Mapping[str, Tensor], tied: Mapping[str, str]) -> ArrayRecord:
    """A sub-model's tensors as Flower sends them; made once for all clients with the same sub-model."""
    raws = {name: TensorBytes.of(tensor, copy=True) for name, tensor in sub.items() if name not in tied}
    for name, (dtype, _, _) in raws.items():
        if dtype not in CODES:
            raise UpdateError(f"'{name}' is {dtype}, which cannot be sent; allowed: {', '.join(CODES)}")
    return ArrayRecord({name: Array(dtype, shape, STYPE, data) for name, (dtype, shape, data) in raws.items()})


def task_record(
    task: Task,
    arrays: ArrayRecord,
    *,
    token: str,
    round: int,
    sent: Mapping[str, Mapping[str, Tensor] | float] | None = None,
) -> RecordDict:
    """The content of a task's message; `sent` is what the method sends beside the sub-model, cut like it."""
    counts = task.index.counts
    beside = {
        f"{SENT}/{name}/{tensor}": value
        for name, tensors in (sent or {}).items()
        if isinstance(tensors, Mapping)
        for tensor, value in tensors.items()
    }
    numbers = {name: float(value) for name, value in (sent or {}).items() if not isinstance(value, Mapping)}
    if beside:
        arrays = ArrayRecord({**arrays, **task_arrays(beside, {})})
    facts: dict[str, Any] = {
        "token": token,
        "round": round,
        "client": task.client,
        "capacity": float(task.capacity),
        "index": task.index.key,
        "groups": list(counts),
        "counts": list(counts.values()),
    }
    if numbers:
        facts |= {"numbers": list(numbers), "values": list(numbers.values())}
    return RecordDict({"task": ConfigRecord(facts), "arrays": arrays})


def read_answer(
    content: RecordDict,
    task: Task,
    sent: Mapping[str, Tensor],
    *,
    token: str,
    round: int,
    settings: ServerSettings,
    limits: Limits,
    trainer: Trainer,
) -> CheckedAnswer:
    """Check the answer to a task; `UpdateError` says in one sentence what is wrong with it."""
    if not isinstance(content.get("answer"), ConfigRecord) or not isinstance(content.get("arrays"), ArrayRecord):
        raise UpdateError("it is not an answer to a task")
    facts, arrays = content["answer"], content["arrays"]
    assert isinstance(facts, ConfigRecord)
    assert isinstance(arrays, ArrayRecord)
    if facts.get("token") != token:
        raise UpdateError("it does not hold the token of its task")
    for name, expected in (("round", round), ("client", task.client), ("index", task.index.key)):
        if facts.get(name) != expected or isinstance(facts.get(name), bool):
            raise UpdateError(f"it is for {name} {_shown(facts.get(name))}, not {expected}")
    plan, local = task.index.plan, trainer.rule.local
    own = {name: t for name, t in sent.items() if name not in plan.tied}
    beside = {
        f"{REPORT}/{report}/{name}": t
        for report in (*local.adds, *local.own)
        for name, t in own.items()
        if name in trainer.trained
    }
    found = _tensors(arrays, {**own, **beside})
    sub = with_tied({name: found[name] for name in own}, plan.tied)
    reports = grouped({name: found[name] for name in beside}, REPORT)
    kept = {name: reports.pop(name) for name in local.own if name in reports}
    _check_norm(sub, sent, limits.norm)
    weight = _number(facts, "weight")
    training = trainer.settings.training
    min_weight, max_weight = (
        weigh(settings.weighting, samples=number, index=task.index, updates=count_steps(number, training))
        for number in (1, limits.samples)
    )
    if not min_weight <= weight <= max_weight:
        raise UpdateError(f"its weight {weight:g} is not between {min_weight:g} and {max_weight:g}")
    try:
        labels = _labels(facts, settings.label_rows)
        update = Update(sub, task.index, weight, labels=labels, client=task.client, reports=reports)
        check_update(update, task.index)
    except FedwidthError as error:
        raise UpdateError(str(error)) from None
    passes = facts.get("passes")
    max_passes = count_steps(limits.samples, training) * training.batch_size + limits.samples
    if type(passes) is not int or not 0 <= passes <= max_passes:
        raise UpdateError(f"it claims to have seen {_shown(passes)} samples")
    for name, tensor in ((name, tensor) for tensors in kept.values() for name, tensor in tensors.items()):
        if not bool(torch.isfinite(tensor).all()):
            raise UpdateError(f"what it remembers of '{name}' holds a value that is not finite")
    return CheckedAnswer(update, passes, _number(facts, "loss"), kept)


def size_of(content: RecordDict) -> int:
    """How many bytes a message's content has: its arrays, and its text and numbers about as they are sent."""
    total = 0
    for record in content.values():
        for name, value in record.items():
            total += len(name) + (len(value.data) if isinstance(value, Array) else _value_size(value))
    return total


def _value_size(value: Any) -> int:
    if isinstance(value, (str, bytes)):
        return len(value)
    return sum(_value_size(part) for part in value) if isinstance(value, list) else 8


def _tensors(arrays: ArrayRecord, sent: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The arrays as tensors, whose names, dtypes and shapes must be those of what was sent."""
    if set(arrays) != set(sent):
        odd = sorted(set(arrays) ^ set(sent))[0]
        raise UpdateError(f"it {'lacks' if odd in sent else 'has an unknown'} tensor '{printable(odd, 80)}'")
    tensors = {}
    for name, old in sent.items():
        array, dtype = arrays[name], str(old.dtype).removeprefix("torch.")
        if array.dtype != dtype or array.stype != STYPE:
            raise UpdateError(f"'{name}' is {_shown(array.dtype)} ({_shown(array.stype)}), not {dtype} ({STYPE})")
        if tuple(array.shape) != tuple(old.shape):
            raise UpdateError(f"'{name}' has shape {_shown(list(array.shape))}, not {list(old.shape)}")
        if len(array.data) != old.numel() * old.element_size():
            raise UpdateError(f"'{name}' has {len(array.data)} bytes, not {old.numel() * old.element_size()}")
        tensors[name] = TensorBytes(dtype, tuple(old.shape), array.data).tensor(copy=True)
    return tensors


def _check_norm(sub: Mapping[str, Tensor], sent: Mapping[str, Tensor], max_norm: float) -> None:
    """Refuse a change that is not finite, or larger than training can bring about."""
    change = size = 0.0
    for name, old in sent.items():
        if not old.is_floating_point():
            continue
        before, after = old.detach().cpu().double(), sub[name].double()
        if not bool(torch.isfinite(after).all()):
            raise UpdateError(f"'{name}' holds a value that is not finite")
        change += float((after - before).square().sum())
        size += float(before.square().sum())
    bound = max_norm * max(1.0, math.sqrt(size))
    if not math.sqrt(change) <= bound:
        raise UpdateError(f"its change has norm {math.sqrt(change):.3g}, above the bound {bound:.3g}")


def _labels(facts: ConfigRecord, wanted: bool) -> Tensor | None:
    labels = facts.get("labels")
    if labels is None and not wanted:
        return None
    if not wanted or not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise UpdateError(f"its labels must be {'whole numbers' if wanted else 'left out'}")
    if len(set(labels)) < len(labels):
        raise UpdateError("it names a label twice")
    return torch.tensor(labels, dtype=torch.long)


def _number(facts: ConfigRecord, name: str) -> float:
    value = facts.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UpdateError(f"its {name} is {_shown(value)}, not a finite number")
    return float(value)


def _shown(value: object) -> str:
    """A value that came from outside, made fit for a line of the log."""
    return printable(repr(value), 60)
