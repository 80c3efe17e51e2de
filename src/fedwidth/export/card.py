"""A model card: what a file holds, where it comes from, how well it does and what it costs, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

import fedwidth
from fedwidth.config.build import load_data
from fedwidth.core.cost import Cost, cost_of
from fedwidth.core.narrow import copy_model
from fedwidth.data.trees import Tree, describe
from fedwidth.errors import FedwidthError
from fedwidth.evaluation import scores
from fedwidth.export.load import Taken, model_of
from fedwidth.export.wanted import server_width, share
from fedwidth.methods import methods
from fedwidth.objectives.metric import Measure
from fedwidth.run.folder import read_summary

TOGETHER = "It answers with the logarithm of the mean of the probabilities that its models give to each class."


@dataclass(frozen=True)
class Quality:
    """How well the model does, and who says so."""

    text: str
    source: str


def quality_of(taken: Taken) -> Quality:
    """What the run reported at this width; where it did not measure it, what the test set says now, if it is here."""
    summary = read_summary(taken.folder)
    measure, found = Measure.of(summary), _reported(taken, summary)
    settings = taken.settings.evaluation
    if found is not None and settings.norm == "static":
        return Quality(f"{measure.title} {measure.text(found)}", "as the run reported, on the test set")
    try:
        data = load_data(taken.settings)
        still = replace(settings, norm="static")
        score, _ = scores.score(taken.model, data, data.test, still, torch.device("cpu"), objective=taken.objective)
    except FedwidthError:
        return Quality("not measured", "the run did not measure this width, and its data are not here")
    measure = taken.objective.metric.measure
    return Quality(f"{measure.title} {measure.text(score.value)}", "measured on the test set when it was exported")


def _reported(taken: Taken, summary: Mapping[str, Any]) -> float | None:
    """What the run measured of this model; None where it did not."""
    name, together = Measure.of(summary).name, list(taken.together)
    if together:
        asked = {"chosen": summary.get("chosen_capacities"), "together": taken.settings.evaluation.capacities}
        return next((summary.get(f"{which}_{name}") for which, widths in asked.items() if widths == together), None)
    if taken.capacity == 1:
        return summary.get(f"global_{name}")
    return (summary.get(f"capacity_{name}") or {}).get(f"{taken.capacity:g}")


def cost_of_model(taken: Taken) -> Cost:
    """What the model costs a device."""
    return cost_of(lambda: copy_model(taken.model), taken.plan, taken.data.example(), capacity=taken.capacity)


def card(taken: Taken, *, form: str, notes: tuple[str, ...] = ()) -> str:
    """The card of an exported model, in Markdown."""
    settings, found, quality = taken.settings, cost_of_model(taken), quality_of(taken)
    widths = taken.together or (taken.capacity,)
    shown = " + ".join(map(share, widths))
    together = " which answer together," if taken.together else ""
    known = methods().get(settings.method.name)
    paper = f" ({known.paper})" if known else ""
    name, options = model_of(taken)
    partition = taken.given.get("partition", settings.data.partition)
    rows = [
        ("model", f"`{name}`" + (f" {options}" if options else "")),
        ("width", f"{shown} of the run's model,{together} {found.share:.2%} of its parameters"),
        *_of_full_width(taken, widths),
        ("method", f"{known.title if known else settings.method.name}{paper}"),
        ("data", f"{taken.facts['name']}, {settings.data.clients} clients, partition {partition}"),
        ("rounds", f"{taken.round}, seed {settings.seed}"),
        ("quality", f"{quality.text} ({quality.source})"),
        ("parameters", f"{found.parameters:,.0f}"),
        ("bytes", f"{found.bytes:,.0f} of parameters, {found.buffer_bytes:,.0f} of buffers"),
        ("multiply-adds", f"{found.macs:,.0f} a sample"),
        ("inputs", _inputs(taken)),
        ("format", form),
        ("made by", f"fedwidth {fedwidth.__version__}"),
    ]
    lines = [f"# {settings.name or name}, width {shown}", "", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in rows]
    for note in (*notes, *([TOGETHER] if taken.together else [])):
        lines += ["", note]
    return "\n".join(lines) + "\n"


def _of_full_width(taken: Taken, widths: Sequence[float]) -> list[tuple[str, str]]:
    """The row that says what the widths are of the model at full width, where the run's own is narrower."""
    server = server_width(taken.settings)
    if server == 1:
        return []
    shown = " + ".join(share(width * server) for width in widths)
    return [("of full width", f"{shown}, as the run's model is itself {share(server)} of the model at full width")]


def _inputs(taken: Taken) -> str:
    example: Tree = taken.data.example()
    transform = taken.facts.get("transform") or {}
    text = f"{describe(example)} for two samples"
    if transform.get("mean") is not None:
        mean, std = (", ".join(f"{each:g}" for each in transform[name]) for name in ("mean", "std"))
        text += f"; images as (x / {transform.get('scale') or 1:g} - mean) / std, mean {mean}, std {std}"
    elif transform.get("scale"):
        text += f"; x / {transform['scale']:g}"
    return text
