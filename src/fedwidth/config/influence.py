"""What each setting has influence on: the one place that says when two runs are the same.

Two runs that differ in

    WITHOUT_INFLUENCE   give the same bits: such a run may be resumed, and its checkpoint used, with other values
    ROUNDING            do the same work on other processors or in another order, and agree up to rounding
    PRECISION           do the same work in another arithmetic
    BUDGET              train the same rounds, but not as many of them
    MEASURING           train the same model, but look at other numbers or at other times
    "seed"              are repetitions of one experiment
    any other setting   are different experiments

Which of these count depends on the question. `identity` asks for the same bits. An entry of a report is one line in
every picture, so its runs may differ in ROUNDING and in their seed only. A cell of a published table takes every run of
its experiment, however precise and however often it was measured.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from fedwidth.config.schema import keys
from fedwidth.settings import Settings

WITHOUT_INFLUENCE = (
    *("name", "answers", "checkpoint_every", "checkpoint_seconds", "checkpoint_history"),
    *("client_memory", "workers", "slots"),
    *("data.root", "evaluation.alarm", "ray.address", "ray.cpus"),
)
ROUNDING = ("engine", "device", "data.cache", "ray.engine", "ray.gpus")
"""The settings of Ray are among them only where it trains, and of its GPUs only whether there are any."""
PRECISION = ("precision",)
BUDGET = ("privacy.epsilon", "privacy.delta", "privacy.accountant")
"""When a private run ends. Its rounds have the same bits, so that one which ended early may go on with more."""
MEASURING = (
    *("evaluation.every", "evaluation.also", "evaluation.test", "evaluation.local"),
    *("evaluation.capacities", "evaluation.capacities_every", "evaluation.draws"),
)
ADDED = (
    *(
        "data.public",
        "data.public_name",
        "data.validation",
        "evaluation.also",
        "evaluation.test",
        "evaluation.alarm",
        "evaluation.capacities_every",
        "evaluation.draws",
        "devices.relative_to",
        "devices.whole_only",
        "devices.correlate",
        "devices.correlate_strength",
    ),
    *("server.lr_every", "server.lr_until", "server.holders_exponent", "server.norms"),
    *("server.clip", "server.screen", "server.strikes", "server.quarantine"),
    *("devices.budgets", "devices.profiles"),
    *("devices.rates", "devices.bandwidth", "devices.deadline", "devices.dropout"),
    *("training.smoothing", "data.cache", "model.weights", "model.fresh", "model.keep"),
    *("secure.enabled", "secure.min_clients", "secure.clip", "secure.max_weight"),
    *("devices.sampling", "server.robust", "server.robust_share", "server.robust_bound"),
    *("privacy.noise", "privacy.clip", "privacy.delta", "privacy.epsilon", "privacy.accountant", "privacy.adjacency"),
    *("privacy.min_denominator", "privacy.quantile", "privacy.clip_rate", "privacy.bits_noise"),
    *("adapter.rank", "adapter.targets", "adapter.alpha", "adapter.train"),
    *("adapter.outside", "adapter.widths", "adapter.average"),
    *("objective.name", "objective.loss", "objective.metric", "objective.better", "objective.output"),
)
"""Settings that version 0.1.0 lacked. At their default they are no part of a fingerprint, and earlier ones hold."""


def by_key(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as nested tables (`asdict` of them, a TOML file, a record) by dotted key.

    >>> by_key({"rounds": 3, "method": {"name": "fedavg", "options": {}}})
    {'rounds': 3, 'method.name': 'fedavg', 'method.options': {}}
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        inner = value.items() if isinstance(value, Mapping) else [("", value)]
        found |= {f"{name}.{key}" if key else name: each for key, each in inner}
    return found


def influences(settings: Mapping[str, Any], *, without: Collection[str] = ()) -> dict[str, Any]:
    """The settings that decide the bits of a run by dotted key, leaving out those `without`.

    >>> sorted(influences({"rounds": 3, "slots": 2, "engine": "serial", "ray": {"engine": "cuda"}}, without=ROUNDING))
    ['rounds']
    """
    found = by_key(settings)
    if settings.get("engine") == "ray":
        found["ray.gpus"] = bool(found.get("ray.gpus"))
    else:
        found = {name: value for name, value in found.items() if name not in ("ray.engine", "ray.gpus")}
    return {name: value for name, value in found.items() if name not in (*WITHOUT_INFLUENCE, *without)}


def experiment_of(settings: Mapping[str, Any], *, without: Collection[str]) -> dict[str, str]:
    """The settings that make a run the experiment it is, as JSON by dotted key: those that are not at their default.

    Only these, so that a setting added to fedwidth later (at its default) does not disown earlier runs.

    >>> experiment_of(asdict(Settings(rounds=7, device="cuda", slots=3)), without=ROUNDING)
    {'rounds': '7'}
    """
    defaults = {name: key.default for name, key in keys().items()}
    return {
        name: json.dumps(value, sort_keys=True, default=str)
        for name, value in influences(settings, without=without).items()
        if value != defaults.get(name)
    }


def identity(settings: Settings) -> str:
    """A fingerprint of everything that influences results: a checkpoint belongs to a run if theirs are equal."""
    return _fingerprint(settings, without=BUDGET)


def settings_hash(settings: Settings) -> str:
    """A fingerprint of everything that influences results but the seed: the same for all runs of one experiment."""
    return _fingerprint(settings, without=("seed",))


def _fingerprint(settings: Settings, without: Collection[str] = ()) -> str:
    everything = asdict(settings)
    for name in (*WITHOUT_INFLUENCE, *without):
        section, _, key = name.rpartition(".")
        if section:  # it stays, at its default: checkpoints and records of earlier versions hold such fingerprints
            everything[section][key] = keys()[name].default
        else:
            del everything[name]
    for name in ADDED:
        section, _, key = name.rpartition(".")
        if everything[section][key] == keys()[name].default:
            del everything[section][key]
    for section in ("objective", "secure", "privacy", "adapter"):  # as it was before there were such settings
        if not everything[section]:
            del everything[section]
    if not settings.local.name:  # as it was before there were local rules
        del everything["local"]
    if not settings.models:  # as it was before there were several architectures
        del everything["models"]
    ray = everything.pop("ray")
    if settings.engine == "ray":
        everything["engine"] = f"ray {ray['engine']} {'cuda' if ray['gpus'] else 'cpu'}"
    return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()
