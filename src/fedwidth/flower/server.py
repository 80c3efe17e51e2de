"""The ServerApp: the same experiment as `fedwidth run`, its clients trained on nodes.

Every round is checkpointed in `out`; a new `flwr run` of the same app goes on after the last one that is there. A
round with too few answers is repeated with whoever is connected then. One run at a time may use `out`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedwidth import folder
from fedwidth.config import read_settings
from fedwidth.errors import FedwidthError, OptionError, unknown
from fedwidth.experiment import Experiment, Line, Result
from fedwidth.flower.engine import FlowerEngine, TooFewAnswers
from fedwidth.flower.local import load_parts
from fedwidth.flower.records import Limits
from fedwidth.flower.roll import Node, Roll, budgets_to_capacity
from fedwidth.settings import Settings
from fedwidth.summary import describe_accuracy

LOCK = ".serve.lock"
"""Held from before nodes are waited for until the run ends; the run's own lock is let go between attempts."""


@dataclass(frozen=True)
class Deployment:
    """The app's run config (`[tool.flwr.app.config]`, with dashes for underscores)."""

    out: str = ""
    """Folder of the run on the server's machine: checkpoint, metrics, summary."""
    load: str = ""
    """Your own data: package.module:function, see `local.Load`; empty: what the recipe names."""
    least_clients: int = 1
    """Answers without which a round is repeated."""
    wait_for: int = 0
    """Nodes to wait for before the first round; 0: as many as a round takes."""
    wait_seconds: float = 600.0
    """How long to wait for enough nodes."""
    round_seconds: float = 600.0
    """How long a round waits for answers."""
    attempts: int = 5
    """How often a round is tried."""
    norm_bound: float = 10.0
    """Largest norm of an update, in multiples of the norm of the sub-model that was sent."""
    most_samples: int = 1_000_000
    """Samples a client may claim for its weight."""
    enrolled: str = ""
    """Folder with the devices that are enrolled, see `enrolment`; empty: whoever Flower lets in, without limits."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Deployment:
        """From a run config; unknown keys and values of another kind are refused."""
        kinds: dict[str, Any] = {part.name: type(part.default) for part in fields(cls)}
        values: dict[str, Any] = {}
        for key, value in config.items():
            name = key.replace("-", "_")
            if name not in kinds:
                raise unknown("run config key", key, [name.replace("_", "-") for name in kinds])
            kind = kinds[name]
            if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
                raise OptionError(f"run config key '{key}' must be {kind.__name__}, not {value!r}")
            if kind is not str and value < 0:
                raise OptionError(f"run config key '{key}' must be at least 0, not {value!r}")
            values[name] = kind(value)
        return cls(**values)


def serve(
    grid: Grid,
    recipe: str,
    deployment: Deployment,
    *,
    on_round: Callable[[Line], None] = lambda _: None,
    log: Callable[[str], None] = print,
) -> Result:
    """Run the recipe to its last round on the nodes of a grid, going on from `deployment.out`."""
    if not deployment.out:
        raise OptionError("run config key 'out' must name a folder for checkpoints and results")
    # Whatever the recipe says: a round on real devices is dear, and one that is repeated begins at its checkpoint.
    settings = replace(read_settings(recipe).main, checkpoint_every=1)
    folder.check(Path(deployment.out), settings, resume=True, overwrite=False)
    with folder.locked(Path(deployment.out), LOCK):
        return _serve(grid, settings, deployment, on_round=on_round, log=log)


def _serve(
    grid: Grid,
    settings: Settings,
    deployment: Deployment,
    *,
    on_round: Callable[[Line], None],
    log: Callable[[str], None],
) -> Result:
    if deployment.load:  # what clients would score on their own data only they can know
        settings = replace(settings, evaluation=replace(settings.evaluation, local=False))
    data, partition = load_parts(settings, deployment.load, None)
    experiment = Experiment(settings, data=data, partition=partition)
    experiment.memory_travels = True
    roll = Roll(grid, len(partition), _capacities(experiment), seconds=deployment.wait_seconds, log=log)
    engine = FlowerEngine(
        grid,
        experiment.trainer,
        node_of=lambda: {client: node.id for client, node in roll.present.items()},
        least=deployment.least_clients,
        seconds=deployment.round_seconds,
        limits=Limits(norm=deployment.norm_bound, samples=deployment.most_samples),
        log=log,
    )
    per_round, least = settings.devices.per_round, max(1, deployment.least_clients)
    expected = deployment.wait_for or max(per_round, least)
    log(f"waiting for {expected} nodes, at most {deployment.wait_seconds:g} s")
    roll.wait(expected, deployment.wait_seconds)
    failures = 0

    def cohort(round: int) -> list[tuple[int, float]]:
        found = roll.wait(least, deployment.wait_seconds)
        return roll.cohort(round, per_round, seed=settings.seed, found=found)

    def finished(line: Line) -> None:
        nonlocal failures
        failures = 0
        log(f"round {line['round']} of {settings.rounds}: {len(line['clients'])} clients, {line['seconds']} s")
        on_round(line)

    while True:
        try:
            return experiment.run(Path(deployment.out), resume=True, on_round=finished, engine=engine, cohort=cohort)
        except TooFewAnswers as error:
            failures += 1
            if failures >= deployment.attempts:
                raise
            log(f"{error}; it is repeated ({failures} of {deployment.attempts - 1})")


def server_app(recipe: str) -> ServerApp:
    """The ServerApp of a recipe (TOML text)."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        """Run it."""
        logging.getLogger("flwr").addFilter(_in_one_line())
        deployment = Deployment.of(context.run_config)
        out = deployment.out
        result = serve(grid, recipe, deployment)
        print(f"finished: {describe_accuracy(result.metrics[-1])}; see fedwidth report {out}", flush=True)

    return app


def _in_one_line() -> Callable[[logging.LogRecord], bool]:
    """A filter for Flower's log: what stopped the run for a reason is one line, without the way through the code."""
    stopped = False

    def shorten(record: logging.LogRecord) -> bool:
        nonlocal stopped
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, (FedwidthError, OSError)):
            record.msg, record.args, record.exc_info = "the run failed: %s", (" ".join(str(error).split()),), None
            stopped = True
            return True
        return not (stopped and record.getMessage().startswith("Exit Code"))  # which says less

    return shorten


def _capacities(experiment: Experiment) -> Callable[[Node, int], float]:
    """What a node trains: the capacity it states, what its budget pays for, or what the recipe's mix deals it."""
    settings, partition = experiment.settings, experiment.partition

    @cache
    def paid(node_budgets: frozenset[tuple[str, float]], passes: float) -> float:
        return budgets_to_capacity(dict(node_budgets), experiment, passes=passes)

    def capacity_of(node: Node, round: int) -> float:
        if node.capacity is not None:
            return node.capacity
        if node.budgets:
            training = settings.training
            samples = node.samples or len(partition[node.client])
            passes = training.steps * training.batch_size or training.epochs * samples
            return paid(frozenset(node.budgets.items()), float(max(1, passes)))
        return experiment.capacities.of_client(
            node.client, len(partition), round=round, seed=settings.seed, dynamic=settings.devices.dynamic
        )

    return capacity_of
