"""What is timed, for both source trees alike: only what exists in an older tree too may be used here.

A case is a function that goes on for ever and calls `over(note)` after every round; that call waits while it is the
other tree's turn, and ends the case by raising. So a run is set up, captured and warmed up once, and what is timed are
its rounds alone. All rounds of a case are the same work: every client takes part in each, and its width never changes.
The note (the training loss) tells whether both trees computed the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

import fedwidth
from fedwidth.config import read_settings
from fedwidth.data import Data, Transform, from_tensors
from fedwidth.experiment import Experiment
from fedwidth.models import build, example_inputs
from fedwidth.settings import Settings

try:
    from fedwidth.run.lockstep import run_in_lockstep
except ImportError:  # where it stood until 0.2
    from fedwidth.together import run_together as run_in_lockstep

Over = Callable[[object], None]

WIDTHS = (1, 1, 1 / 2, 1 / 2, 1 / 4, 1 / 4, 1 / 8, 1 / 8, 1 / 16, 1 / 16)
METHODS = ("fedrolex", "feddropout")
COLOUR, GREY = (3, 32, 32), (1, 28, 28)
"""Shapes of CIFAR's and MNIST's images."""

ENDLESS = """
rounds = 1000000
[evaluation]
every = 1000000
local = false
"""

DIGITS = (  # the quick start's, with ten clients in all, which take as many steps as its twenty
    "data.name=digits",
    "data.clients=10",
    "data.partition=labels",
    "data.partition_options={per_client=3}",
    "model.name=cnn",
    "model.options={widths=[32,64,64]}",
    "training.batch_size=16",
    "training.steps=5",
)
CIFAR = (  # FedRolex' local training
    "model.name=preresnet18",
    "data.partition=labels",
    "data.partition_options={per_client=2}",
    "training.optimiser=adam",
    "training.lr=2e-4",
    "training.clip=1.0",
)
THESIS = (  # recipe thesis/table3-2, a few steps a round
    "model.name=mlp",
    "model.options={hidden=[128,32]}",
    "data.clients=10",
    "data.partition=random_labels",
    "data.partition_options={per_client=4}",
    "devices.capacities=1/4:1",
    "training.optimiser=adam",
    "training.lr=1e-5",
    "training.weight_decay=0.0",
    "training.batch_size=16",
    "training.steps=10",
    "training.clip=0.0",
    "training.mask=none",
    "training.scaler=false",
    "server.label_rows=false",
)


def cases(device: str) -> dict[str, Callable[[Over], None]]:
    """Everything that is timed on this device, by name."""
    found: dict[str, Callable[[Over], None]] = {}
    for name in METHODS:
        found[f"extract {name}"] = partial(extract, device, name)
        found[f"aggregate {name}"] = partial(aggregate, device, name)
    on_gpu = device.startswith("cuda")
    for engine in ("serial", "vectorised", "cuda") if on_gpu else ("serial", "processes", "vectorised", "cuda"):
        found[f"digits {engine}"] = partial(run, settings(device, f"engine={engine}", "workers=2", *DIGITS), None)
    thesis = [
        settings(device, "engine=vectorised", f"method.name={name}", f"seed={seed}", *THESIS)
        for seed in (1, 2)
        for name in ("feddropout", "fedrolex", "fedcover", "fedminoccurances")
    ]
    found["packed stacks"] = partial(run_pack, thesis, GREY)
    if not on_gpu:
        pair = [settings(device, "engine=cuda", f"method.name={name}", *DIGITS) for name in ("fedrolex", "heterofl")]
        found["packed slots"] = partial(run_pack, pair, None)
        return found
    for precision in ("bf16", "tf32"):
        for batch, steps in ((10, 20), (128, 4)):
            wanted = cifar(device, "engine=cuda", precision, batch, steps)
            found[f"preresnet18 cuda {precision} batch {batch}"] = partial(run, wanted, COLOUR)
    narrow = ("data.clients=60", "devices.per_round=60", "devices.capacities=1/8:1")
    wanted = cifar(device, "engine=vectorised", "bf16", 64, 4, *narrow)
    found["preresnet18 vectorised 60 of 1/8"] = partial(run, wanted, COLOUR)
    found["preresnet18 serial"] = partial(run, cifar(device, "engine=serial", "tf32", 10, 2), COLOUR)
    pair = [cifar(device, "engine=cuda", "bf16", 128, 4, f"method.name={name}") for name in ("fedrolex", "heterofl")]
    found["packed slots"] = partial(run_pack, pair, COLOUR)
    return found


def settings(device: str, *changes: str) -> Settings:
    """Of a run that does not end and is not evaluated."""
    return read_settings(ENDLESS, [f"device={device}", *changes]).main


def cifar(device: str, engine: str, precision: str, batch: int, steps: int, *changes: str) -> Settings:
    """PreResNet18, clients of five widths unless `changes` say otherwise."""
    how = (engine, f"precision={precision}", f"training.batch_size={batch}", f"training.steps={steps}")
    return settings(device, "data.clients=10", *CIFAR, *how, *changes)


def images(clients: int, shape: tuple[int, ...]) -> Data:
    """Random images, 500 for each client: speed does not depend on what they show."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (500 * clients, *shape), generator=generator, dtype=torch.uint8)
    labels = torch.arange(len(pixels)) % 10
    mean, spread = (0.5,) * shape[0], (0.25,) * shape[0]
    how = (
        Transform(mean, spread, scale=255, padding=4, flip=True)
        if shape == COLOUR
        else Transform(mean, spread, scale=255)
    )
    return from_tensors(pixels, labels, pixels[:100], labels[:100], kind="images", transform=how, name="random")


def run(wanted: Settings, shape: tuple[int, ...] | None, over: Over) -> None:
    """Rounds of one run, on random images of this shape or the data it names."""
    data = images(wanted.data.clients, shape) if shape else None
    Experiment(wanted, data=data).run(on_round=lambda line: over(line["train_loss"]))


def run_pack(wanted: list[Settings], shape: tuple[int, ...] | None, over: Over) -> None:
    """Rounds of several runs as one batch, on random images of this shape or the data they name."""
    data = images(wanted[0].data.clients, shape) if shape else None
    runs = [Experiment(wanted[0], data=data)]
    runs += [Experiment(each, data=runs[0].data) for each in wanted[1:]]
    losses: list[object] = []

    def after(number: int, line: dict[str, object]) -> None:
        losses.append(line["train_loss"])
        if number == len(runs) - 1:
            over(losses.copy())
            losses.clear()

    run_in_lockstep(runs, on_round=after)


def extract(device: str, name: str, over: Over) -> None:
    """The sub-models of ten clients cut out of PreResNet18."""
    state, plan, indexes = parts(device, name)
    while True:
        subs = [fedwidth.extract(state, plan, index) for index in indexes]
        over(None)
        del subs


def aggregate(device: str, name: str, over: Over) -> None:
    """Ten trained sub-models averaged into PreResNet18."""
    state, plan, indexes = parts(device, name)
    updates = []
    for index in indexes:
        sub = fedwidth.extract(state, plan, index)
        updates.append(({key: tensor + 1 for key, tensor in sub.items()}, index, 1.0))
    while True:
        merged = fedwidth.merge(state, updates, plan)
        over(None)
        del merged


def parts(device: str, name: str) -> tuple[dict[str, torch.Tensor], fedwidth.Plan, list[fedwidth.Index]]:
    """PreResNet18's state and plan, and the indexes of ten clients; equal ones are one object, as in a run."""
    model = build("preresnet18")
    plan = fedwidth.trace(model, example_inputs("preresnet18"))
    method, known = fedwidth.method(name, rounding="ceil"), {}
    indexes = []
    for position, width in enumerate(WIDTHS):
        index = method.select(plan, capacity=width, round=100, client=position, clients=len(WIDTHS))
        indexes.append(known.setdefault(index.key, index))
    return fedwidth.state_of(model.to(device)), plan, indexes
