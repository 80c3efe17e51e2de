"""fedwidth on the workload: the engine is an argument, as in `cuda` or `processes:2` (workers)."""

import numpy as np
from workload import BATCH, CLASSES, CLIENTS, LEARNING_RATE, PER_ROUND, SAMPLES, run

from fedwidth.config.read import read_settings
from fedwidth.data import Partition, Shares, from_tensors
from fedwidth.experiment import Experiment

CHANGES = [
    "method.name=fedavg",
    "devices.capacities=a1",
    f"devices.per_round={PER_ROUND}",
    f"training.batch_size={BATCH}",
    f"training.lr={LEARNING_RATE}",
    "training.momentum=0",
    "training.weight_decay=0",
    "training.clip=0",
    "training.mask=none",
    "training.scaler=false",
    "server.label_rows=false",
    "evaluation.every=100000",
    "evaluation.local=false",
]


def experiment(inputs, targets, rounds, *changes, model=None):
    settings = read_settings("", [*CHANGES, f"rounds={rounds}", *changes]).main
    data = from_tensors(inputs, targets, inputs[:100], targets[:100], classes=CLASSES, kind="images")
    shares = Shares.of(np.arange(CLIENTS).repeat(SAMPLES), CLIENTS)
    nothing = Shares.of(np.zeros(0, dtype=np.int64), CLIENTS)
    return Experiment(
        settings, model=model, data=data, partition=Partition("even", shares, nothing, data.train.targets)
    )


def train(workload, arguments, clock):
    engine, _, workers = arguments.engine.partition(":")
    changes = [f"engine={engine}", f"workers={workers or 1}"]
    run = experiment(workload.inputs, workload.targets, workload.rounds, *changes, model=workload.model())
    result = run.run(on_round=lambda _: clock.lap())
    return result.server.state


if __name__ == "__main__":
    run(train)
