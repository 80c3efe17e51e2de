"""Metrics as sums: every sample gives a few numbers, and the metric of any set of samples follows from their sums.

So one pass over the test data gives the metric of all samples, of each client's own, and of runs that are evaluated
together. Accuracy sums (right, counted); the mean squared error (squares, counted); mean intersection over union two
numbers for each class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedwidth.errors import OptionError


def ratio(sums: Tensor) -> Tensor:
    """The first of two sums over the second.

    >>> ratio(torch.tensor([[3, 4], [1, 2]]))
    tensor([0.7500, 0.5000], dtype=torch.float64)
    """
    return sums[..., 0].double() / sums[..., 1]


@dataclass(frozen=True)
class Measure:
    """What is to be known of a metric to read its numbers."""

    name: str
    """Keys of metrics end with it: `global_accuracy`."""
    title: str
    higher_is_better: bool = True
    percent: bool = False
    """Whether it is a share, which people are told in percent."""

    @property
    def sign(self) -> int:
        """1 where higher is better, else -1."""
        return 1 if self.higher_is_better else -1

    @property
    def unit(self) -> str:
        """What stands behind a number in tables: a percent sign, or nothing."""
        return " %" if self.percent else ""

    def scaled(self, value: float) -> float:
        """The value in the unit that people are told: in percent, or as it is."""
        return 100 * value if self.percent else value

    def digits(self, number: float, digits: int = 2) -> str:
        """A number in that unit: so many digits of percent, else four that count.

        >>> ACCURACY.digits(12.345, 1), Measure("mse", "mean squared error").digits(12.3456)
        ('12.3', '12.35')
        """
        return f"{number:.{digits}f}" if self.percent else f"{number:.4g}"

    def text(self, value: float) -> str:
        """The value as people are told it.

        >>> ACCURACY.text(0.5), Measure("mse", "mean squared error").text(12.3456)
        ('50.00 %', '12.35')
        """
        return f"{self.digits(self.scaled(value))}{self.unit}"

    def facts(self) -> dict[str, Any]:
        """As files have it."""
        return {
            "name": self.name,
            "title": self.title,
            "higher_is_better": self.higher_is_better,
            "percent": self.percent,
        }

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Measure:
        """Of a line of the metrics or a summary; those that do not say tell accuracies.

        >>> Measure.of({"global_accuracy": 0.5}).name
        'accuracy'
        """
        facts = line.get("metric")
        return cls(**facts) if isinstance(facts, Mapping) else ACCURACY


ACCURACY = Measure("accuracy", "accuracy", percent=True)


def measure_of(lines: Iterable[Mapping[str, Any]]) -> Measure:
    """What the lines of a run's metrics measure."""
    return next((Measure.of(line) for line in lines if "metric" in line), ACCURACY)


@dataclass(frozen=True)
class Metric:
    """What is measured of a model."""

    measure: Measure
    counts: Callable[[Any, Any], Tensor]
    """(output, targets) -> [samples, numbers], of which the last is how many targets of the sample count."""
    value: Callable[[Tensor], Tensor] = ratio
    """Sums of these numbers [..., numbers] -> the metric [...]."""

    @property
    def name(self) -> str:
        """The name that keys of metrics end with."""
        return self.measure.name

    def of(self, sums: Tensor) -> Tensor:
        """The metric of sums [..., numbers], NaN where nothing was counted."""
        return torch.where(sums[..., -1] > 0, self.value(sums).double(), torch.nan)


@dataclass(frozen=True)
class MeanOf:
    """The mean over samples of a function of the user's own: (output, targets) -> one number for each sample."""

    function: Callable[[Any, Any], Any]

    def __call__(self, output: Any, targets: Any) -> Tensor:
        """The values and, for each, a one."""
        values = self.function(output, targets)
        if not isinstance(values, Tensor) or values.dim() != 1:
            name = getattr(self.function, "__name__", "of your own")
            found = f"a tensor {list(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
            raise OptionError(f"the metric {name} must return one number for each sample, [samples], not {found}")
        return torch.stack([values.double(), torch.ones_like(values, dtype=torch.float64)], dim=-1)
