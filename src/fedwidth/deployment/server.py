"""The ServerApp: the same experiment as `fedwidth run`, whose clients train on Flower nodes.

Every round is checkpointed in the folder `out`, and a new `flwr run` of the same app goes on after the last checkpoint
there. A round with too few answers is repeated with the nodes that are connected then. One run at a time may use `out`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedwidth.config.method_settings import method_of
from fedwidth.config.read import read_settings
from fedwidth.deployment.access.enrolment import Enrolled, EnrolmentFolder
from fedwidth.deployment.attendance import MIN_CAPACITY, Attendance, Introduction
from fedwidth.deployment.budgets import budgets_to_capacity
from fedwidth.deployment.engine import FlowerEngine, TooFewAnswers
from fedwidth.deployment.node.training import load_parts
from fedwidth.deployment.records import Limits
from fedwidth.deployment.run_config import RunConfig
from fedwidth.deployment.secure.run import SecureRun
from fedwidth.engines.support import why_not_elsewhere
from fedwidth.errors import FedwidthError, OptionError
from fedwidth.evaluation.samples import samples_to_choose_by
from fedwidth.experiment import Experiment, Line, Result
from fedwidth.objectives.metric import Measure
from fedwidth.printable import printable
from fedwidth.run import folder
from fedwidth.run.folder import SERVE_LOCK as LOCK
from fedwidth.run.summary import describe_score
from fedwidth.settings import Settings
from fedwidth.training.engine import Engine
from fedwidth.watching.audit import NAME as AUDIT
from fedwidth.watching.audit import AuditLog
from fedwidth.watching.rounds import note_round

MAX_LINE = 2_000
"""Characters after which a line of the log is cut."""


def serve(
    grid: Grid,
    recipe: str,
    config: RunConfig,
    *,
    roster: str = "",
    on_round: Callable[[Line], None] = lambda _: None,
    log: Callable[[str], None] = print,
) -> Result:
    """Run the recipe to its last round on the nodes of a grid, going on after the last checkpoint in `config.out`.

    `roster` are the public keys of all devices, for secure sums (TOML text).
    """
    if not config.out:
        raise OptionError("run config key 'out' must name a folder for checkpoints and results")
    settings = config.with_defaults(read_settings(recipe).main)
    run = SecureRun.of(settings, config, roster) if settings.secure.enabled else None
    with folder.locked(Path(config.out), LOCK):
        return _serve(grid, settings, config, run, on_round=on_round, log=lambda line: log(printable(line, MAX_LINE)))


def _serve(
    grid: Grid,
    settings: Settings,
    config: RunConfig,
    run: SecureRun | None,
    *,
    on_round: Callable[[Line], None],
    log: Callable[[str], None],
) -> Result:
    if config.load:  # what clients would score on their own data only they can know
        settings = replace(settings, evaluation=replace(settings.evaluation, local=False))
    if (reason := why_not_elsewhere(method_of(settings), "flower", adapted=settings.adapter.rank > 0)) is not None:
        raise OptionError(reason)
    data, partition = load_parts(settings, config.load, None)
    experiment = Experiment(settings, data=data, partition=partition, named=True)
    # As the folder has them: it takes the model to say what capacities budgets come to.
    folder.check_folder(Path(config.out), experiment.settings, resume=True, overwrite=False)
    experiment.costs.memory_travels = experiment.costs.frozen_travels = True

    enrolment = EnrolmentFolder(Path(config.enrolled), each_file=True) if config.enrolled else None

    def enrolled() -> Mapping[int, Enrolled] | None:
        return enrolment.read() if enrolment is not None else None

    audit = AuditLog(Path(config.enrolled).parent / AUDIT) if config.enrolled else None  # beside those enrolled
    enrolled()  # a folder that cannot be read is an error before any node is asked
    attendance = Attendance(
        grid,
        len(partition),
        _capacities(experiment, enrolled),
        seconds=config.introduction_seconds,
        enrolled=enrolled,
        groups=[name.strip() for name in config.groups.split(",") if name.strip()],
        min_capacity=min(MIN_CAPACITY, *experiment.capacities.values),
        hello={"run": run.name.hex()} if run is not None else {},
        check=run.check if run is not None else lambda _: None,
        log=log,
        note=partial(audit.note_or_say, log) if audit is not None else lambda _, **__: None,
    )
    for line in folder.read_metrics(Path(config.out)):
        attendance.quarantined |= _quarantined(line)

    def max_samples(client: int) -> int:
        known = enrolled()
        if known is not None and client not in known:
            return 0  # revoked since it was asked
        own = (known or {}).get(client)
        allowed = own.max_samples if own is not None else config.most_samples
        return allowed if config.load else min(allowed, max(1, len(partition[client])))

    min_clients = max(1, config.least_clients)
    per_round = max(settings.devices.per_round, min_clients)

    def nodes() -> dict[int, int]:
        return {client: introduction.node for client, introduction in attendance.present.items()}

    engine: Engine
    if run is not None:
        engine = run.engine(grid, experiment.trainer, nodes, attendance, log)
    else:
        engine = FlowerEngine(
            grid,
            experiment.trainer,
            nodes=nodes,
            min_answers=config.least_clients,
            wanted_answers=per_round,
            quorum=config.quorum,
            patience_seconds=config.patience_seconds,
            round_seconds=config.round_seconds,
            limits=Limits(norm=config.norm_bound, samples=config.most_samples),
            max_samples=max_samples,
            log=log,
            on_round_end=attendance.end_round,
        )
    expected = config.wait_for or max(per_round, min_clients)
    log(f"waiting for {expected} nodes, at most {config.wait_seconds:g} s")
    attendance.wait(expected, config.wait_seconds)
    failures = 0

    def cohort(round: int) -> list[tuple[int, float]]:
        found = attendance.wait(min_clients, config.wait_seconds, round=round)
        asked = math.ceil(per_round * (1 + config.over_select))
        return attendance.cohort(round, asked, seed=settings.seed, found=found, min_clients=min_clients)

    def finished(line: Line) -> None:
        nonlocal failures
        failures = 0
        log(f"round {line['round']} of {settings.rounds}: {len(line['clients'])} clients, {line['seconds']} s")
        for text in remarks(line):
            log(f"round {line['round']}: {text}")
        attendance.quarantined |= _quarantined(line)
        if audit is not None:
            note_round(audit, line)
        on_round(line)

    while True:
        try:
            return experiment.run(Path(config.out), resume=True, on_round=finished, engine=engine, cohort=cohort)
        except TooFewAnswers as error:
            failures += 1
            if failures >= config.attempts:
                raise
            log(f"{error}; it is repeated ({failures} of {config.attempts - 1})")


def remarks(line: Line) -> Iterator[str]:
    """Lines about a round that an operator should read: updates far too large, clients left out, accuracy lost.

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
        measure = Measure.of(line)
        value = measure.text(line[samples_to_choose_by(line, measure.name).key(measure.name)])
        fall = f"{line['alarm']:g} points below" if measure.percent else f"{line['alarm']:g} worse than"
        yield (
            f"ALARM: {measure.title} {value} is {fall} the best of the last evaluations;"
            " fedwidth deploy rollback goes back to an earlier checkpoint"
        )


def _quarantined(line: Line) -> dict[int, int]:
    """The clients that a line of the metrics puts into quarantine, each with the last round of it."""
    return {int(client): int(last) for client, last in line.get("quarantined", {}).items()}


def server_app(recipe: str, roster: str = "") -> ServerApp:
    """The ServerApp of a recipe, and of the roster of its devices where it has secure sums (TOML text)."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        """Run the recipe with the run config that Flower hands over."""
        logging.getLogger("flwr").addFilter(shorten_failures())
        config = RunConfig.of(context.run_config)
        result = serve(grid, recipe, config, roster=roster)
        print(f"finished: {describe_score(result.metrics[-1])}; see fedwidth report {config.out}", flush=True)

    return app


def shorten_failures() -> Callable[[logging.LogRecord], bool]:
    """A filter for Flower's log, by which an expected error that ends a run takes one line and has no traceback."""
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
) -> Callable[[Introduction, int], float]:
    """A function that says what a node trains in a round, which is never more than its client is enrolled for.

    It is the capacity that the node states, else what its budgets pay for, else what the recipe's mix gives its client.
    """
    settings, partition = experiment.settings, experiment.partition

    @cache
    def affordable(budgets: frozenset[tuple[str, float]], passes: float) -> float:
        return budgets_to_capacity(dict(budgets), experiment, passes=passes)

    def capacity_of(introduction: Introduction, round: int) -> float:
        own = (enrolled() or {}).get(introduction.client)
        return min(claimed(introduction, round), own.max_capacity if own is not None else 1.0)

    def claimed(introduction: Introduction, round: int) -> float:
        if introduction.capacity is not None:
            return introduction.capacity
        if introduction.budgets:
            training = settings.training
            samples = introduction.samples or len(partition[introduction.client])
            passes = training.steps * training.batch_size or training.epochs * samples
            return affordable(frozenset(introduction.budgets.items()), float(max(1, passes)))
        return experiment.capacities.of_client(
            introduction.client, len(partition), round=round, seed=settings.seed, dynamic=settings.devices.dynamic
        )

    return capacity_of
