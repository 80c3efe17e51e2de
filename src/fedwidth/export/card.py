"""A model card: what a file holds, where it comes from, how well it does and what it costs, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
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
    settings, runs = taken.settings.evaluation, taken.several or (taken,)
    if not taken.several:
        summary = read_summary(taken.folder)
        measure, found = Measure.of(summary), _reported(taken, summary)
        if found is not None and settings.norm == "static":
            samples = "the test set" if settings.test else "validation samples"
            return Quality(f"{measure.title} {measure.text(found)}", f"as the run reported, on {samples}")
    what = "nobody measured them together" if taken.several else "the run did not measure this width"
    if not all(each.settings.evaluation.test for each in runs):
        return Quality("not measured", f"{what}, and test samples are left alone: evaluation.test is false")
    gone = Quality("not measured", f"{what}, and the data are not here")
    if not taken.here and any("data" in each.given for each in runs):  # settings name others, or none
        return gone
    try:
        data = taken.data if taken.here else load_data(taken.settings)
        still = replace(settings, norm="static")
        score, _ = scores.score(taken.model, data, data.test, still, torch.device("cpu"), objective=taken.objective)
    except FedwidthError:
        return gone
    measure = taken.objective.metric.measure
    return Quality(f"{measure.title} {measure.text(score.value)}", "measured on the test set when it was exported")


def _reported(taken: Taken, summary: Mapping[str, Any]) -> float | None:
    """What the run measured of this model; None where it did not."""
    name, together = Measure.of(summary).name, list(taken.together)
    if together:
        asked = {"chosen": summary.get("chosen_capacities"), "together": taken.settings.evaluation.capacities}
        return next((summary.get(f"{which}_{name}") for which, widths in asked.items() if widths == together), None)
    if taken.capacity == 1:
        return summary.get(f"global_{name}" if taken.settings.evaluation.test else f"validation_{name}")
    return (summary.get(f"capacity_{name}") or {}).get(f"{taken.capacity:g}")


def cost_of_model(taken: Taken) -> Cost:
    """What the model costs a device."""
    return cost_of(lambda: copy_model(taken.model), taken.plan, taken.data.example(), capacity=taken.capacity)


def card(taken: Taken, *, form: str, notes: tuple[str, ...] = ()) -> str:
    """The card of an exported model, in Markdown."""
    found, quality = cost_of_model(taken), quality_of(taken)
    if taken.several:
        title = f"{len(taken.several)} models, one of each run, that answer together"
        rows = [
            (f"{number}: {name}", value)
            for number, each in enumerate(taken.several, 1)
            for name, value in (("run", f"`{Path(*each.folder.parts[-2:])}`"), *_origin(each))
        ]
    else:
        title, rows = _title(taken), _of_one_run(taken, found)
    rows += [
        ("quality", f"{quality.text} ({quality.source})"),
        ("parameters", f"{found.parameters:,.0f}"),
        ("bytes", f"{found.bytes:,.0f} of parameters, {found.buffer_bytes:,.0f} of buffers"),
        ("multiply-adds", f"{found.macs:,.0f} a sample"),
        ("inputs", _inputs(taken)),
        ("format", form),
        ("made by", f"fedwidth {fedwidth.__version__}"),
    ]
    lines = [f"# {title}", "", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in rows]
    for note in (*notes, *([TOGETHER] if taken.together or taken.several else [])):
        lines += ["", note]
    return "\n".join(lines) + "\n"


def _title(taken: Taken) -> str:
    """What the model of one run is called, and its width."""
    name, _ = model_of(taken)
    return f"{taken.settings.name or name}, width {_shown_widths(taken)}"


def _shown_widths(taken: Taken) -> str:
    return " + ".join(map(share, taken.together or (taken.capacity,)))


def _of_one_run(taken: Taken, cost: Cost) -> list[tuple[str, str]]:
    """The rows of a model, or of several widths that answer together, of one run."""
    together = " which answer together," if taken.together else ""
    width = f"{_shown_widths(taken)} of the run's model,{together} {cost.share:.2%} of its parameters"
    model, *others = _origin(taken)
    return [model, ("width", width), *others]


def _origin(taken: Taken) -> list[tuple[str, str]]:
    """The rows that say which model a run's is, and how it was trained."""
    settings = taken.settings
    known = methods().get(settings.method.name)
    paper = f" ({known.paper})" if known else ""
    name, options = model_of(taken)
    partition = taken.given.get("partition", settings.data.partition)
    return [
        ("model", f"`{name}`" + (f" {options}" if options else "")),
        *_of_full_width(taken, taken.together or (taken.capacity,)),
        ("method", f"{known.title if known else settings.method.name}{paper}"),
        ("data", f"{taken.facts['name']}, {settings.data.clients} clients, partition {partition}"),
        ("rounds", f"{taken.round}, seed {settings.seed}"),
    ]


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
