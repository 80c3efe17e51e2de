"""The objectives there are, and the one that settings name.

classification   one label a sample, or one for each word, pixel or token: cross entropy over the last axis
next-word        the same for text, where the label of a word is the word that follows
regression       numbers: mean squared error; a target that is not a number does not count
multi-label      any number of labels a sample, as zeros and ones: binary cross entropy
segmentation     a label for each pixel, classes on the second axis as convolutions have them: cross entropy
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from fedwidth.data import IGNORE, Data
from fedwidth.data.trees import describe
from fedwidth.errors import OptionError, PlanError, unknown
from fedwidth.importing import import_function, import_object
from fedwidth.methods.lookup.by_name import UNNAMED
from fedwidth.objectives import losses
from fedwidth.objectives.metric import MeanOf, Measure, Metric
from fedwidth.objectives.metrics import CLASS_METRICS, LABEL_METRICS, NUMBER_METRICS, PIXEL_METRICS
from fedwidth.objectives.objective import Objective, numbers_of
from fedwidth.objectives.output import Pick
from fedwidth.settings import ObjectiveSettings


def _check_classes(output: Any, targets: Any, data: Data) -> None:
    _check_tensor(output)
    if not isinstance(targets, Tensor) or targets.is_floating_point():
        raise PlanError(f"classification needs targets that are whole numbers, not {_kind(targets)}")
    wanted = (*targets.shape, data.classes)
    if tuple(output.shape) != wanted:
        raise PlanError(
            f"the model returns {list(output.shape)} for targets {list(targets.shape)}, but the data needs logits"
            f" {list(wanted)}: the last dimension is its {data.classes} classes"
        )


def _check_pixels(output: Any, targets: Any, data: Data) -> None:
    _check_tensor(output)
    if not isinstance(targets, Tensor) or targets.is_floating_point() or targets.dim() < 2:
        raise PlanError(f"segmentation needs a whole number for each pixel as target, not {_kind(targets)}")
    wanted = (len(targets), data.classes, *targets.shape[1:])
    if tuple(output.shape) != wanted:
        hint = "; classes on the last axis are for objective.name = 'classification'"
        raise PlanError(
            f"the model returns {list(output.shape)} for targets {list(targets.shape)}, but segmentation needs logits"
            f" {list(wanted)}: the second dimension is its {data.classes} classes"
            f"{hint if output.shape[-1] == data.classes else ''}"
        )


def _check_numbers(output: Any, targets: Any, data: Data) -> None:
    del data
    _check_tensor(output)
    if not isinstance(targets, Tensor):
        raise PlanError(f"targets must be one tensor, not {_kind(targets)}")
    if output.numel() != targets.numel() or len(output) != len(targets):
        raise PlanError(
            f"the model returns {list(output.shape)}, but the targets are {list(targets.shape)}: it must return one"
            " number for each"
        )


def _check_labels(output: Any, targets: Any, data: Data) -> None:
    _check_numbers(output, targets, data)
    whole = data.train.targets
    whole = whole if isinstance(whole, Tensor) else targets  # what is read as it is needed cannot be checked beforehand
    known = whole[~whole.isnan()]
    if bool(((known != 0) & (known != 1)).any()):
        raise PlanError("multi-label targets must be zeros and ones, one for each label of each sample")


def _check_tensor(output: Any) -> None:
    if not isinstance(output, Tensor):
        raise PlanError(f"the model must return one tensor of logits, but returned a {type(output).__name__}")


def _kind(targets: Any) -> str:
    return f"{describe(targets)} of {targets.dtype}" if isinstance(targets, Tensor) else f"a {type(targets).__name__}"


CLASSIFICATION = Objective(
    "classification",
    losses.cross_entropy,
    CLASS_METRICS[0],
    labelled=True,
    ignored=IGNORE,
    total=losses.cross_entropy_sum,
    totals=losses.cross_entropy_parts,
    check=_check_classes,
)
OBJECTIVES: dict[str, Objective] = {
    "classification": CLASSIFICATION,
    "next-word": replace(CLASSIFICATION, name="next-word"),
    "regression": Objective(
        "regression",
        losses.squared_error,
        NUMBER_METRICS[0],
        ignored=math.nan,
        outputs=numbers_of,
        check=_check_numbers,
    ),
    "multi-label": Objective(
        "multi-label",
        losses.label_cross_entropy,
        LABEL_METRICS[0],
        ignored=math.nan,
        outputs=numbers_of,
        check=_check_labels,
    ),
    "segmentation": Objective(
        "segmentation",
        losses.pixel_cross_entropy,
        PIXEL_METRICS[0],
        ignored=IGNORE,
        check=_check_pixels,
    ),
}
METRICS = {
    "classification": CLASS_METRICS,
    "next-word": CLASS_METRICS,
    "regression": NUMBER_METRICS,
    "multi-label": LABEL_METRICS,
    "segmentation": PIXEL_METRICS,
}


def objective_of(settings: ObjectiveSettings, data: Data | None = None) -> Objective:
    """The objective that settings name; without data, "auto" is classification."""
    found = _named(settings, data)
    if settings.loss:
        loss = import_function("loss", settings.loss)
        # It need not know a target that does not count, so clients with unequal batches do not share a stack.
        found = replace(found, loss=loss, ignored=None, total=None, totals=None)
    if settings.metric:
        found = replace(found, metric=_metric(settings, found))
    elif settings.better:
        raise OptionError("objective.better is for a metric of your own, and objective.metric names none")
    return replace(found, output=Pick(settings.output)) if settings.output else found


def _named(settings: ObjectiveSettings, data: Data | None) -> Objective:
    name = settings.name
    if name == "auto":
        return CLASSIFICATION if data is None else _by_data(data)
    if name in OBJECTIVES:
        return OBJECTIVES[name]
    if name.startswith(f"{UNNAMED}:"):
        own = name.removeprefix(f"{UNNAMED}:")
        raise OptionError(
            f"objective '{own}' was made in a program and has no name: only that program can go on with it"
        )
    if ":" not in name:
        raise unknown("objective", name, ["auto", *OBJECTIVES, "package.module:OBJECTIVE"])
    found = import_object("objective", name)
    if not isinstance(found, Objective):
        raise OptionError(f"objective '{name}' must be a fedwidth.Objective, not a {type(found).__name__}")
    return found


def _by_data(data: Data) -> Objective:
    """Classification for targets that are whole numbers, and the next word for text."""
    if data.kind == "tokens":
        return OBJECTIVES["next-word"]
    if data.train.labels.shape[-1:] == (0,):
        targets = data.example_targets()
        raise OptionError(
            f"the targets of data set '{data.name}' are {_kind(targets)}, no class numbers: say what they are for with"
            f" objective.name, one of {', '.join(OBJECTIVES)}, or an objective of your own"
        )
    return CLASSIFICATION


def _metric(settings: ObjectiveSettings, objective: Objective) -> Metric:
    known = {metric.name: metric for metric in METRICS.get(objective.name, (objective.metric,))}
    if settings.metric in known:
        if settings.better:
            raise OptionError(f"objective.better is for a metric of your own, and {settings.metric} is not")
        return known[settings.metric]
    if ":" not in settings.metric:
        raise unknown(f"metric for {objective.name}", settings.metric, [*known, "package.module:function"])
    found = import_object("metric", settings.metric)
    if isinstance(found, Metric):
        if settings.better:
            raise OptionError(f"objective.better is said by {settings.metric} itself: leave it out")
        return found
    if not callable(found):
        raise OptionError(f"metric '{settings.metric}' must be a function or a Metric, not a {type(found).__name__}")
    return metric_of(found, settings.better != "lower")


def metric_of(function: Callable[[Any, Any], Any], higher_is_better: bool = True) -> Metric:
    """The mean over samples of a function (output, targets) -> one number for each sample."""
    name = getattr(function, "__name__", type(function).__name__)
    title = next(iter((inspect.getdoc(function) or name.replace("_", " ")).splitlines()))
    return Metric(Measure(name, title.rstrip("."), higher_is_better), MeanOf(function))
