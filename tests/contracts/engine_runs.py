"""Small runs in double precision of every model with every engine, without evaluation."""

from __future__ import annotations

import warnings
from concurrent.futures import Executor
from dataclasses import replace
from functools import cache
from itertools import cycle

import pytest
import torch
from contract_models import from_catalogue
from torch import nn

import zoo
from fedwidth.data import from_tensors
from fedwidth.engines import ProcessEngine, make_engine
from fedwidth.engines.processes.engine import start_pool
from fedwidth.engines.processes.startup import script_hidden, startup_arguments
from fedwidth.engines.processes.worker import start_worker
from fedwidth.experiment import Experiment
from fedwidth.settings import DataSettings, DeviceSettings, MethodSettings, Settings, TrainingSettings
from fedwidth.training.round import run_round

CLIENTS, PER_CLIENT = 5, 5
"""Batches of three: every client's second batch is short."""

TRAINING = TrainingSettings(lr=0.02, batch_size=3, clip=1.0, momentum=0.9, weight_decay=5e-4)


class Logits(nn.Module):
    """A model of the zoo whose output is one tensor with the classes last, which is what training takes."""

    def __init__(self, model, name):
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x):
        if self.name == "t5":
            return self.model(input_ids=x, decoder_input_ids=x[:, :4]).logits
        if self.name in zoo.HUGGING_FACE:
            return self.model(input_ids=x).logits
        y = self.model(x)
        return y.movedim(1, -1) if self.name == "unet" else y


def build(name):
    """A model of the contracts in double precision, and one example batch for it."""
    if not name.startswith("zoo "):
        model, inputs = from_catalogue(name)
        return model.double(), zoo.doubled(inputs)
    name = name.removeprefix("zoo ")
    if name in zoo.HUGGING_FACE:
        pytest.importorskip("transformers")
    case = zoo.EVERY[name]
    inputs = case.inputs()
    inputs = inputs["input_ids"] if isinstance(inputs, dict) else inputs
    return Logits(zoo.build(case.full), name), zoo.doubled(inputs)


@cache
def experiment(name, method="fedrolex", per_round=3, device="cpu", options=(), **training):
    """A run of this model on random samples; made (and traced) once for all engines."""
    model, example = build(name)
    draw = torch.Generator().manual_seed(3)
    shape = (CLIENTS * PER_CLIENT, *example.shape[1:])
    if example.is_floating_point():
        inputs = torch.randn(shape, generator=draw, dtype=torch.float64)
    else:
        inputs = torch.randint(0, int(example.max()) + 1, shape, generator=draw)
    with torch.no_grad():
        answer = model.eval()(inputs)
    targets = torch.randint(0, answer.shape[-1], answer.shape[:-1], generator=draw)
    data = from_tensors(inputs, targets, inputs, targets, classes=answer.shape[-1])
    settings = Settings(
        rounds=20,
        device=device,
        method=MethodSettings(method, options=dict(options)),
        data=DataSettings(clients=CLIENTS),
        devices=DeviceSettings("1:1 1/2:1 1/4:1", dynamic=True, per_round=per_round),
        training=replace(TRAINING, **training),
    )
    return Experiment(settings, model=model, data=data)


class SharedWorkers(Executor):
    """Worker processes that serve one trainer after the other: a process takes seconds to start."""

    def __init__(self, number):
        self.number, self.pools = number, []

    def serve(self, trainer, workers):
        """Give every worker what a trainer holds, as it would get it when it starts."""
        assert workers == self.number
        with script_hidden(True):
            if not self.pools:  # one process each, so that every one of them can be told
                self.pools = [start_pool(trainer, 1) for _ in range(self.number)]
            for told in [pool.submit(start_worker, *startup_arguments(trainer)) for pool in self.pools]:
                told.result()
        self.turns = cycle(self.pools)
        return self

    def submit(self, call, *arguments):
        return next(self.turns).submit(call, *arguments)

    def shutdown(self, wait=True, *, cancel_futures=False):
        """Stay for the next case; they end with the tests."""


WORKERS = SharedWorkers(2)


def train(run, engine, rounds=20, **settings):
    """The state after some rounds with this engine, the losses of all clients, and what the engine warned of."""
    trainer = replace(run.trainer, settings=replace(run.settings, engine=engine, **settings))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if engine == "processes" and not settings:
            made = ProcessEngine(trainer, WORKERS.number, start_pool=WORKERS.serve)
        else:
            made = make_engine(trainer)
    server, losses = run.first_server(), []
    try:
        for round in range(rounds):
            server, _, report = run_round(run.rounds, server, run.cohort(round), made)
            losses.append(report.losses)
    finally:
        made.close()
    return server.state, losses, [str(w.message) for w in said]


TURNS = {"flexlora": 1e-4, "fedgkt": 1e-9}
"""Singular vectors of values that are close turn by a rounding over their distance, in every round. FedGKT's server
trains with Adam, which makes more of a rounding than SGD."""


def worst(one, other):
    """Largest difference of two states."""
    assert one.keys() == other.keys()
    return max(float((one[n].double() - other[n].double()).abs().max()) for n in one if one[n].numel())
