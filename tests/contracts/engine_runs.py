"""Small runs in double precision of every model with every engine, without evaluation."""

from __future__ import annotations

import pickle
import warnings
from concurrent.futures import Future
from dataclasses import replace
from functools import cache

import pytest
import torch
from contract_models import from_catalogue
from torch import nn

import zoo
from fedwidth.data import from_tensors
from fedwidth.engines import make_engine, processes
from fedwidth.experiment import Experiment
from fedwidth.settings import DataSettings, DeviceSettings, MethodSettings, Settings, TrainingSettings
from fedwidth.training.client import Trainer
from fedwidth.training.rounds import run_round

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
def experiment(name, method="fedrolex", per_round=3, device="cpu", **training):
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
        method=MethodSettings(method),
        data=DataSettings(clients=CLIENTS),
        devices=DeviceSettings("1:1 1/2:1 1/4:1", dynamic=True, per_round=per_round),
        training=replace(TRAINING, **training),
    )
    return Experiment(settings, model=model, data=data)


class InlinePool:
    """Does what a pool of worker processes does in this process: all that goes in and out is pickled."""

    def __init__(self, trainer):
        parts = (trainer.model, trainer.plan, trainer.data, trainer.partition, trainer.settings)
        model, plan, data, partition, settings = pickle.loads(pickle.dumps(parts))
        self.trainer = Trainer(model, plan, data, partition, trainer.method, settings)

    def submit(self, call, *arguments):
        future = Future()
        before, processes._trainer = processes._trainer, self.trainer
        try:
            future.set_result(pickle.loads(pickle.dumps(call(*pickle.loads(pickle.dumps(arguments))))))
        except Exception as error:
            future.set_exception(error)
        finally:
            processes._trainer = before
        return future

    def shutdown(self, **options):
        pass


def train(run, engine, rounds=20, *, inline=True, **settings):
    """The state after some rounds with this engine, the losses of all clients, and what the engine warned of.

    Worker processes are played by this one, unless `inline` is false: a process takes seconds to start.
    """
    trainer = replace(run.trainer, settings=replace(run.settings, engine=engine, **settings))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        made = make_engine(trainer)
    if engine == "processes":
        made._pool = InlinePool(trainer) if inline else None
    server, losses = run.first_server(), []
    try:
        for round in range(rounds):
            server, _, report = run_round(run.rounds, server, run.cohort(round), made)
            losses.append(report.losses)
    finally:
        made.close()
    return server.state, losses, [str(w.message) for w in said]


def worst(one, other):
    """Largest difference of two states."""
    assert one.keys() == other.keys()
    return max(float((one[n].double() - other[n].double()).abs().max()) for n in one if one[n].numel())
