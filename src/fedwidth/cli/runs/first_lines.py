"""What a run says of itself before its first round: what its devices really have of the model, and come to remember."""

from __future__ import annotations

from fedwidth.analysis.yardsticks import CAPPED, yardsticks
from fedwidth.core.cost import count_bytes
from fedwidth.core.index import Index
from fedwidth.experiment import Experiment
from fedwidth.methods import Task
from fedwidth.plan.shares import Share, ratio
from fedwidth.plan.table import share_lines
from fedwidth.settings import PrivacySettings, SecureSettings


def explain_shares(experiment: Experiment) -> str:
    """What a device of each capacity that takes part really has of the model, in words.

    It is that of the parts which the method hands out in the first round, be they slices of the model or not.
    """
    training, plan, capacities = experiment.settings.training, experiment.plan, experiment.rounds.enrolled
    moments = 2 if training.optimiser != "sgd" else int(training.momentum > 0)
    tasks = experiment.rounds.assign(experiment.first_server(), list(enumerate(capacities)))
    full = experiment.costs.of_part(Index.whole(plan), 1.0)
    whole = full.memory(batch=training.batch_size, moments=moments)

    def share(capacity: float, task: Task) -> Share:
        cost, counts = experiment.costs.of(task), task.part.counts if isinstance(task.part, Index) else None
        memory = cost.memory(batch=training.batch_size, moments=moments)
        return Share(
            capacity, counts, ratio(cost.parameters, full.parameters), ratio(cost.macs, full.macs), memory / whole
        )

    shares = [share(capacity, task) for capacity, task in zip(capacities, tasks, strict=True)]
    return "\n".join(share_lines(plan, shares, batch=training.batch_size))


def explain_memory(experiment: Experiment) -> str:
    """What clients may come to remember in all, in words; empty where they remember nothing."""
    local, clients = experiment.method.local, len(experiment.partition)
    if local is None or not (local.own or local.answers):
        return ""
    parameters = dict(experiment.model.named_parameters(remove_duplicate=False))
    each = len(local.own) * count_bytes(experiment.plan, {}, parameters)
    if local.answers:  # each keeps its model, the widest of them all
        each = largest_own_model(experiment)
    where = "in memory; client_memory=disk keeps it in files"
    if experiment.settings.client_memory == "disk":
        where = "in files"
    sizes = f"{each * clients / 2**30:.2g} GiB ({clients} of {each / 2**20:.3g} MiB)"
    return f"clients remember up to {sizes}, kept {where}"


def explain_unfit(experiment: Experiment) -> list[str]:
    """Which devices can train nothing and are left out of every round, in words: a line for each capacity."""
    return [f"devices of capacity {capacity:g} are left out: {why}" for capacity, why in experiment.unfit.items()]


def explain_server_width(experiment: Experiment) -> str:
    """That no device that takes part holds the server's model, in words; empty where one does.

    A narrower server's model is then mostly the better one (docs/benchmark.md#capped).
    """
    settings = experiment.settings
    if settings.adapter.rank or not experiment.method.slices or CAPPED not in yardsticks(settings):
        return ""
    width = settings.model.width * max(experiment.rounds.enrolled)
    return (
        "no device holds the whole of the server's model: with most methods one as wide as the widest device"
        f" (width {width:g}) is better; --yardsticks compares them"
    )


def explain_what_is_idle(experiment: Experiment) -> list[str]:
    """What of the settings will do little or nothing, in words: a line for each."""
    settings, secure, devices = experiment.settings, experiment.settings.secure, experiment.settings.devices
    found = []
    if not secure.enabled and secure != SecureSettings():
        found.append("what [secure] says has no effect: secure.enabled is false")
    if not settings.privacy.noise and settings.privacy != PrivacySettings():
        found.append("what [privacy] says has no effect: privacy.noise is 0")
    widest = devices.per_round * experiment.capacities.share_of_widest(devices.excluded)
    if secure.enabled and widest < secure.min_clients:
        found.append(
            f"secure.min_clients is {secure.min_clients}, and of the {devices.per_round} clients of a round about"
            f" {widest:.2g} hold as much as the widest device: what only such devices hold stays closed in most rounds,"
            " and as it is"
        )
    own = ":" in settings.model.name  # which may come with trained weights
    if settings.adapter.rank and not settings.model.weights and not own:
        found.append("the model is frozen with new weights, of which adapters learn little: model.weights names others")
    return found


def largest_own_model(experiment: Experiment) -> int:
    """Bytes of the largest model that a client keeps."""
    rounds, enrolled = experiment.rounds, experiment.rounds.enrolled
    tasks = rounds.assign(experiment.first_server(), list(enumerate(enrolled)))
    return max(int(cost.bytes + cost.buffer_bytes) for cost in map(experiment.costs.of, tasks))
