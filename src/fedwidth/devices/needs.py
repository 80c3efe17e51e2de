"""What a sub-model takes of a device in a round: memory, seconds, bytes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from fedwidth.core.cost import PASSES_OF_A_STEP, count_bytes, count_parameters
from fedwidth.core.index import Index
from fedwidth.core.narrow import narrow, skeleton
from fedwidth.devices.budget import DeviceClass
from fedwidth.devices.memory import Memory, cross_entropy, training_memory
from fedwidth.errors import OptionError
from fedwidth.gpu import autocast
from fedwidth.plan import Plan
from fedwidth.plan.isolation import call, untouched
from fedwidth.settings import PRECISIONS

MOMENTS = {"sgd": 1, "adam": 2, "adamw": 2}
"""How many moments an optimiser keeps of each weight."""
TIMED_STEPS = 3
MAX_BATCH = 10**9
"""More samples than any device holds: beyond, sizes in bytes are no numbers that PyTorch can count with."""


@dataclass(frozen=True)
class Work:
    """What a device does in a round."""

    batch: int = 10
    samples: int = 500
    """Each counted as often as it is seen."""
    optimiser: str = "sgd"
    precision: str = "tf32"
    """Of the arithmetic (`Settings.precision`)."""


@dataclass(frozen=True)
class Needs:
    """What a sub-model takes of a device."""

    counts: Mapping[str, int]
    """How many units of each group it has."""
    parameters: int
    share: float
    """Of the full model's parameters."""
    macs: float
    """Multiply-adds of a forward pass of one sample."""
    memory: Memory
    upload: int
    download: int
    seconds: float | None
    """Of a round; None where nothing says how fast the device is."""


class Costing:
    """What the sub-models of one model take; each size is looked at once."""

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        example_inputs: Any,
        work: Work,
        *,
        loss: Callable[[Any], Tensor] | None = None,
        measure: bool = False,
    ) -> None:
        if work.optimiser not in MOMENTS:
            raise OptionError(f"the optimiser must be one of {', '.join(MOMENTS)}, not '{work.optimiser}'")
        if work.precision not in PRECISIONS:
            raise OptionError(f"the precision must be one of {', '.join(PRECISIONS)}, not '{work.precision}'")
        if work.batch > MAX_BATCH:
            raise OptionError(f"batches can have up to {MAX_BATCH:,} samples, not {work.batch}")
        self.model, self.plan, self.example, self.work = model, plan, example_inputs, work
        self.loss, self.measure = loss or cross_entropy, measure
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._full = count_parameters(plan, {})
        self._memory: dict[tuple[bool, tuple[int, ...]], Memory] = {}
        self._seconds: dict[tuple[int, ...], float] = {}

    def needs(self, counts: Mapping[str, int], device: DeviceClass) -> Needs:
        """What the sub-model with so many units of each group takes of a device."""
        plan, work = self.plan, self.work
        parameters = count_parameters(plan, counts)
        macs = plan.work.macs(counts)
        upload = self.upload(counts)
        download = count_bytes(plan, counts, dict(self.model.named_parameters(remove_duplicate=False)))
        memory = self.memory(counts, gpu=device.gpu)
        memory = Memory(memory.received, memory.parameters, memory.optimiser, memory.step, device.base)
        seconds: float | None = None
        if self.measure:
            if device.gpu:
                raise OptionError(f"steps are timed on the processor: state the rate of device '{device.name}'")
            seconds = self.measured_step(counts) * math.ceil(work.samples / work.batch)
        elif device.rate:
            seconds = PASSES_OF_A_STEP * macs * work.samples / device.rate
        if device.bandwidth:
            seconds = (seconds or 0.0) + (upload + download) / device.bandwidth
        return Needs(counts, parameters, parameters / self._full, macs, memory, upload, download, seconds)

    def upload(self, counts: Mapping[str, int]) -> int:
        """Bytes of the parameters that are trained."""
        return count_bytes(self.plan, counts, self._trained)

    def memory(self, counts: Mapping[str, int], *, gpu: bool = False) -> Memory:
        """What training takes, the process apart; or what it takes of this machine's GPU."""
        key = gpu, tuple(counts.values())
        if key not in self._memory:
            work = self.work
            made = skeleton(self.model, self.plan, counts)
            moments = MOMENTS[work.optimiser]
            self._memory[key] = training_memory(
                made,
                self.example,
                batch=work.batch,
                moments=moments,
                loss=self.loss,
                base=0,
                device="cuda" if gpu else "cpu",
                precision=work.precision,
            )
        return self._memory[key]

    def measured_step(self, counts: Mapping[str, int]) -> float:
        """Seconds of a training step on this machine, with one thread as clients train: the median of a few, after one
        that warms up."""
        key = tuple(counts.values())
        if key not in self._seconds:
            if any(parameter.is_meta for parameter in self.model.parameters()):
                raise OptionError("a model without values, on the meta device, cannot be timed: state a rate instead")
            units = {name: range(count) for name, count in counts.items()}
            made = narrow(self.model, self.plan, Index.of_units(self.plan, units)).train()
            size = self.work.batch
            inputs = tree_map(
                lambda x: torch.cat([x] * (1 + size // len(x)))[:size] if isinstance(x, Tensor) and x.dim() else x,
                self.example,
            )
            optimiser = torch.optim.SGD(made.parameters(), lr=0.0, momentum=0.9)
            taken = []
            with untouched(made), ExitStack() as stack:
                stack.callback(torch.set_num_threads, torch.get_num_threads())
                torch.set_num_threads(1)
                for _ in range(1 + TIMED_STEPS):
                    began = time.perf_counter()
                    optimiser.zero_grad()
                    with autocast(torch.device("cpu"), self.work.precision):
                        loss = self.loss(call(made, inputs))
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
                    taken.append(time.perf_counter() - began)
            self._seconds[key] = sorted(taken[1:])[TIMED_STEPS // 2]
        return self._seconds[key]


def exceeded(needs: Needs, device: DeviceClass) -> str:
    """The first budget that is not enough; empty where all are."""
    if device.memory is not None and needs.memory.total > device.memory:
        return "memory"
    if device.seconds is not None:
        if needs.seconds is None:
            raise OptionError(
                f"device '{device.name}' has {device.seconds:g} s, but nothing says how fast it is: state its rate"
                " (multiply-adds per second, --rate) or bandwidth (--bandwidth), or measure this machine (--measure)"
            )
        if needs.seconds > device.seconds:
            return "seconds"
    return "upload" if device.upload is not None and needs.upload > device.upload else ""
