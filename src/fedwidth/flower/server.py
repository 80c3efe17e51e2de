"""The ServerApp: the same experiment as `fedwidth run`, its clients trained on nodes.

Every round is checkpointed in `out`; a new `flwr run` of the same app goes on after the last one that is there. A
round with too few answers is repeated with whoever is connected then. One run at a time may use `out`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedwidth.config.read import read_settings
from fedwidth.errors import FedwidthError, OptionError, unknown
from fedwidth.experiment import Experiment, Line, Result
from fedwidth.flower.access.enrolment import Enrolled, read_enrolled
from fedwidth.flower.attendance import MIN_CAPACITY, Node, Roll
from fedwidth.flower.budgets import budgets_to_capacity
from fedwidth.flower.engine import FlowerEngine, TooFewAnswers
from fedwidth.flower.node.training import load_parts
from fedwidth.flower.printable import printable
from fedwidth.flower.records import Limits
from fedwidth.run import folder
from fedwidth.run.alarm import key_of
from fedwidth.run.folder import SERVE_LOCK as LOCK
from fedwidth.run.summary import describe_accuracy
from fedwidth.settings import Settings

MAX_LINE = 2_000
CLIP = 2.0
"""See docs/deploy-flower.md for what it was measured to keep out, and to cost."""


@dataclass(frozen=True)
class Deployment:
    """The app's run config (`[tool.flwr.app.config]`, with dashes for underscores)."""

    out: str = ""
    """Folder of the run on the server's machine: checkpoint, metrics, summary."""
    load: str = ""
    """Your own data: package.module:function, see `local.Load`; empty: what the recipe names."""
    enrolled: str = ""
    """Folder of the devices that are let in and what each may claim (`deploy add`); empty: no limits."""
    least_clients: int = 1
    """Answers without which a round is repeated."""
    over_select: float = 0.0
    """Share of clients asked beyond those that a round needs; it ends with the first answers that are enough."""
    quorum: float = 0.75
    """Share of a round's answers after which the others are waited for only as long again as these took."""
    patience_seconds: float = 60.0
    """How long they are waited for at least."""
    wait_for: int = 0
    """Nodes to wait for before the first round; 0: as many as a round takes."""
    wait_seconds: float = 600.0
    """How long to wait for enough nodes."""
    introduction_seconds: float = 20.0
    """How long a new node may take to say who it is; one that takes longer is asked again, but not waited for."""
    round_seconds: float = 600.0
    """How long a round waits for answers."""
    attempts: int = 5
    """How often a round is tried."""
    norm_bound: float = 10.0
    """Largest norm of an update, in multiples of the norm of the sub-model that was sent."""
    most_samples: int = 1_000_000
    """Samples a client may claim for its weight."""
    clip: float = CLIP
    """Where the recipe has no `server.clip`: largest norm of an update, in multiples of the round's median."""
    screen: bool = True
    """Leave out updates that point away from those of the round's others (`server.screen`)."""
    alarm: float = 10.0
    """Where the recipe has no `evaluation.alarm`: points of accuracy whose loss is worth a line."""
    history: int = 5
    """Where the recipe has no `checkpoint_history`: earlier checkpoints to keep, besides every tenth."""

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
            if isinstance(value, bool) != (kind is bool) or not isinstance(
                value, (int, float) if kind is float else kind
            ):
                raise OptionError(f"run config key '{key}' must be {kind.__name__}, not {value!r}")
            if kind in (int, float) and not 0 <= value < math.inf:
                raise OptionError(f"run config key '{key}' must be at least 0, not {value!r}")
            values[name] = kind(value)
        found = cls(**values)
        if not 0 < found.quorum <= 1:
            raise OptionError(f"run config key 'quorum' must be above 0 and at most 1, not {found.quorum:g}")
        return found

    def with_defaults(self, settings: Settings) -> Settings:
        """The recipe's settings with what a deployment has where the recipe says nothing."""
        server, evaluation = settings.server, settings.evaluation
        return replace(
            settings,
            # Whatever the recipe says: a round on real devices is dear, and a repeated one begins at its checkpoint.
            checkpoint_every=1,
            checkpoint_history=settings.checkpoint_history or self.history,
            server=replace(server, clip=server.clip or self.clip, screen=server.screen or self.screen),
            evaluation=replace(evaluation, alarm=evaluation.alarm or self.alarm),
        )


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
    settings = deployment.with_defaults(read_settings(recipe).main)
    folder.check_folder(Path(deployment.out), settings, resume=True, overwrite=False)
    with folder.locked(Path(deployment.out), LOCK):
        return _serve(grid, settings, deployment, on_round=on_round, log=lambda line: log(printable(line, MAX_LINE)))


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
    experiment.costs.memory_travels = True

    def enrolled() -> dict[int, Enrolled] | None:
        return read_enrolled(Path(deployment.enrolled)) if deployment.enrolled else None

    enrolled()  # a folder that cannot be read is seen before anybody is asked
    roll = Roll(
        grid,
        len(partition),
        _capacities(experiment, enrolled),
        seconds=deployment.introduction_seconds,
        enrolled=enrolled,
        least_capacity=min(MIN_CAPACITY, *experiment.capacities.values),
        log=log,
    )
    for line in folder.read_metrics(Path(deployment.out)):
        roll.quarantined |= _quarantined(line)

    def samples_of(client: int) -> int:
        known = enrolled()
        if known is not None and client not in known:
            return 0  # revoked since it was asked
        own = (known or {}).get(client)
        most = own.max_samples if own is not None else deployment.most_samples
        return most if deployment.load else min(most, max(1, len(partition[client])))

    least = max(1, deployment.least_clients)
    per_round = max(settings.devices.per_round, least)
    engine = FlowerEngine(
        grid,
        experiment.trainer,
        node_of=lambda: {client: node.id for client, node in roll.present.items()},
        least=deployment.least_clients,
        enough=per_round,
        quorum=deployment.quorum,
        patience=deployment.patience_seconds,
        seconds=deployment.round_seconds,
        limits=Limits(norm=deployment.norm_bound, samples=deployment.most_samples),
        samples_of=samples_of,
        log=log,
        noted=roll.note,
    )
    expected = deployment.wait_for or max(per_round, least)
    log(f"waiting for {expected} nodes, at most {deployment.wait_seconds:g} s")
    roll.wait(expected, deployment.wait_seconds)
    failures = 0

    def cohort(round: int) -> list[tuple[int, float]]:
        found = roll.wait(least, deployment.wait_seconds, round=round)
        asked = math.ceil(per_round * (1 + deployment.over_select))
        return roll.cohort(round, asked, seed=settings.seed, found=found, least=least)

    def finished(line: Line) -> None:
        nonlocal failures
        failures = 0
        log(f"round {line['round']} of {settings.rounds}: {len(line['clients'])} clients, {line['seconds']} s")
        for text in remarks(line):
            log(f"round {line['round']}: {text}")
        roll.quarantined |= _quarantined(line)
        on_round(line)

    while True:
        try:
            return experiment.run(Path(deployment.out), resume=True, on_round=finished, engine=engine, cohort=cohort)
        except TooFewAnswers as error:
            failures += 1
            if failures >= deployment.attempts:
                raise
            log(f"{error}; it is repeated ({failures} of {deployment.attempts - 1})")


def remarks(line: Line) -> Iterator[str]:
    """What somebody should know of a round: updates that were far too large, clients left out, accuracy lost.

    >>> list(remarks({"clipped": {"3": 1.2}, "quarantined": {"7": 15}, "alarm": 12.5, "global_accuracy": 0.7}))[1]
    'client 7 is in quarantine until round 15, for what it sent'
    """
    for client, times in line.get("clipped", {}).items():
        yield f"the update of client {client} was clipped: it was {times:g} times the bound"
    for client, cosine in line.get("opposed", {}).items():
        yield f"the update of client {client} was left out: it points away from those of the others (cosine {cosine:g})"
    for client, last in line.get("quarantined", {}).items():
        yield f"client {client} is in quarantine until round {last}, for what it sent"
    if "alarm" in line:
        accuracy = 100 * line[key_of(line)]
        yield (
            f"ALARM: accuracy {accuracy:.1f} % is {line['alarm']:g} points below the best of the last evaluations;"
            " fedwidth deploy rollback goes back to an earlier checkpoint"
        )


def _quarantined(line: Line) -> dict[int, int]:
    """Clients that a round of the metrics has left out, and until which."""
    return {int(client): int(last) for client, last in line.get("quarantined", {}).items()}


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


def _capacities(
    experiment: Experiment, enrolled: Callable[[], Mapping[int, Enrolled] | None]
) -> Callable[[Node, int], float]:
    """What a node trains: the capacity it states, what its budget pays for, or what the recipe's mix deals it; never
    more than it is enrolled for."""
    settings, partition = experiment.settings, experiment.partition

    @cache
    def paid(node_budgets: frozenset[tuple[str, float]], passes: float) -> float:
        return budgets_to_capacity(dict(node_budgets), experiment, passes=passes)

    def capacity_of(node: Node, round: int) -> float:
        own = (enrolled() or {}).get(node.client)
        return min(claimed(node, round), own.max_capacity if own is not None else 1.0)

    def claimed(node: Node, round: int) -> float:
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
