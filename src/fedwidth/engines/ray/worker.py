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
from fedwidth.core.tensor_bytes import TensorBytes
from fedwidth.engines.faults import error_context
from fedwidth.engines.flat.engine import FlatEngine
from fedwidth.engines.flat.layout import Layout
from fedwidth.engines.limits import TRIALS
from fedwidth.engines.making import make_flat
from fedwidth.engines.ray.messages import ChunkResult, ChunkTasks, EncodedSum, WorkerInfo
from fedwidth.engines.ray.worker_setup import WorkerSetup
from fedwidth.engines.serial import SerialEngine
from fedwidth.engines.transfer import decode, encode
from fedwidth.errors import OptionError
from fedwidth.training.client import Trainer
from fedwidth.training.engine import Engine


class Worker:
    """Trains chunks. One lives in every worker process and keeps its model, data and skeletons."""

    def prepare(self, setup: WorkerSetup, inner: str, device: str) -> WorkerInfo:
        """Take what the run needs; the answer says who and where the worker is."""
        torch.set_num_threads(1)  # as every engine: sums then have one order
        self.trainer = setup.trainer(own_device(device))
        self.engine = make_inner(inner, self.trainer)
        self._call = -1
        self._state: Mapping[str, Tensor] = {}
        return WorkerInfo(platform.node(), os.getpid(), fedwidth.__version__, torch.__version__, _given_gpu())

    def train(self, state: Mapping[str, TensorBytes], chunk: ChunkTasks) -> ChunkResult:
        """Train a chunk from the global state and sum its updates."""
        began = time.perf_counter()
        tasks = chunk.tasks(self.trainer.plan)
        if chunk.call != self._call:
            with error_context("cut", chunk.round, *tasks):
                self._state, self._call = self._decode_state(state), chunk.call
        sums, report = self.engine.run(self._state, tasks, chunk.round)
        cohorts = dict.fromkeys(task.cohort for task in tasks)
        encoded = tuple(EncodedSum.of(total, cohort) for total, cohort in zip(sums, cohorts, strict=True))
        kept = {c: {name: encode(tensors) for name, tensors in own.items()} for c, own in report.kept.items()}
        return ChunkResult(encoded, replace(report, kept={}), time.perf_counter() - began, kept)

    def _decode_state(self, encoded: Mapping[str, TensorBytes]) -> Mapping[str, Tensor]:
        """A round's state in the form that the engine wants, made once for all chunks of the round."""
        state = decode(encoded, device=self.trainer.device)
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
    """The GPU that Ray gave this process, as CUDA_VISIBLE_DEVICES names it."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "")


def make_inner(name: str, trainer: Trainer) -> Engine:
    """The engine inside a worker; one that cannot capture steps is replaced by the serial one."""
    if name == "serial":
        return SerialEngine(trainer)
    # Whether a model can be stacked was tried by the driver; whether its step can be captured is known on a GPU only.
    reason = TRIALS[name](trainer) if name == "cuda" else None
    if reason is None:
        return make_flat(trainer, name, averages_here=False)
    warnings.warn(f"a Ray worker trains one client at a time: {reason}", stacklevel=2)
    return SerialEngine(trainer)
