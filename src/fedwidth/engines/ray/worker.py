"""A worker of the Ray engine: a trainer with one of the fast engines inside. Nothing here imports Ray."""

from __future__ import annotations

import os
import platform
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

import fedwidth
from fedwidth.engines.choice import choose_engine
from fedwidth.engines.faults import named
from fedwidth.engines.flat.engine import FlatEngine
from fedwidth.engines.flat.layout import Layout
from fedwidth.engines.limits import why_not
from fedwidth.engines.ray.records import About, Answer, Kit, Packed, PackedSum, Work, pack, unpack
from fedwidth.engines.serial import SerialEngine
from fedwidth.engines.slots.making import try_capture
from fedwidth.engines.slots.pool import Slots
from fedwidth.engines.stacks.pool import Stacks
from fedwidth.engines.stacks.trial import try_stack
from fedwidth.errors import OptionError
from fedwidth.training.client import Trainer
from fedwidth.training.rounds import Engine


class Worker:
    """Trains parcels. One lives in every worker process and keeps its model, data and skeletons."""

    def prepare(self, kit: Kit, inner: str, device: str) -> About:
        """Take what the run needs; says who and where it is."""
        torch.set_num_threads(1)  # as every engine: sums then have one order
        self.trainer = kit.trainer(own_device(device))
        self.engine = make_inner(inner, self.trainer)
        self._call = -1
        self._state: Mapping[str, Tensor] = {}
        return About(platform.node(), os.getpid(), fedwidth.__version__, torch.__version__, _given_gpu())

    def train(self, state: Mapping[str, Packed], work: Work) -> Answer:
        """Train a parcel from the global state and sum its updates."""
        began = time.perf_counter()
        tasks = work.tasks(self.trainer.plan)
        if work.call != self._call:
            with named("cut", work.round, *tasks):
                self._state, self._call = self._take(state), work.call
        sums, report = self.engine.run(self._state, tasks, work.round)
        keys = dict.fromkeys(task.cohort for task in tasks)
        packed = tuple(PackedSum.of(cohort, key) for cohort, key in zip(sums, keys, strict=True))
        kept = {c: {name: pack(tensors) for name, tensors in own.items()} for c, own in report.kept.items()}
        return Answer(packed, replace(report, kept={}), time.perf_counter() - began, kept)

    def _take(self, packed: Mapping[str, Packed]) -> Mapping[str, Tensor]:
        """A round's state as the engine wants it, made once for all parcels of the round."""
        state = unpack(packed, self.trainer.device)
        state |= {name: state[first] for name, first in self.trainer.plan.tied.items() if first in state}
        if isinstance(self.engine, FlatEngine):
            return Layout(self.trainer.plan, state, next(self.trainer.model.parameters()).dtype).flatten(state)
        return state


def own_device(kind: str) -> torch.device:
    """The device a worker trains on: Ray lets it see no GPU but the one it was given, so that is the first."""
    if kind != "cuda":
        return torch.device(kind)
    if not torch.cuda.is_available():
        raise OptionError(
            f"Ray gave a worker GPU {_given_gpu() or '-'} of {platform.node()}, but PyTorch {torch.__version__} finds"
            " no GPU there: install a build with CUDA on every node, or set ray.gpus = 0 to train on processors"
        )
    return torch.device("cuda", 0)


def _given_gpu() -> str:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "")


def choose_inner(trainer: Trainer) -> tuple[str, str]:
    """The engine inside the workers, the same in all, and the device it trains on."""
    settings = trainer.settings
    if not trainer.method.slices:
        raise OptionError(f"{trainer.method.title} sends other parts than slices, which engine = 'ray' does not take")
    device = "cuda" if settings.ray.gpus else "cpu"
    if settings.ray.gpus > 1:
        raise OptionError(f"ray.gpus is {settings.ray.gpus:g}, but a worker trains on one GPU: give at most 1")
    if trainer.device.type == "cuda" and not settings.ray.gpus:
        raise OptionError("device is 'cuda', but ray.gpus is 0: set the share of a GPU that each worker holds, e.g. 1")
    wanted = replace(settings, engine=settings.ray.engine, device=device)
    there = replace(trainer, settings=wanted, device=torch.device(device))
    # On GPUs no trial: the driver may have none, and its machine must not decide.
    automatic = "cuda" if settings.ray.gpus and settings.ray.engine == "auto" else ""
    name = automatic or choose_engine(there).name
    if name in ("serial", "processes"):
        return "serial", device
    stacked = name == "vectorised"
    # What a GPU cannot do is asked of the workers' device; stacking is tried here, where there may be none.
    reason = why_not(there, stacked=stacked) or (try_stack(trainer) if stacked else None)
    if reason is not None:
        warnings.warn(f"Ray's workers train one client at a time, not {name}: {reason}", stacklevel=3)
    return ("serial" if reason else name), device


def make_inner(name: str, trainer: Trainer) -> Engine:
    """The engine inside a worker."""
    if name == "vectorised":
        return FlatEngine(trainer, Stacks(trainer))
    if name == "cuda":
        reason = try_capture(trainer)
        if reason is None:
            return FlatEngine(trainer, Slots(trainer))
        warnings.warn(f"a Ray worker trains one client at a time: {reason}", stacklevel=2)
    return SerialEngine(trainer)
