"""Which of two accuracies counts: the one on the test set, or the one on validation samples.

A run measures its global model on the test set, on validation samples (of the training data, but nobody trains on
them), or on both. Whoever chooses by the accuracy (settings, a round to go back to) takes validation samples where
there are some: what was chosen by the test set looks better on it than it is. Whoever reports takes the test set,
and validation samples only where it was not looked at.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass


@dataclass(frozen=True)
class Samples:
    """Samples that the global model is measured on."""

    name: str
    prefix: str
    """What their keys begin with in metrics and summaries."""

    def key(self, metric: str = "accuracy") -> str:
        """Where metrics and summaries have a metric on these samples.

        >>> TEST.key(), VALIDATION.key("loss")
        ('global_accuracy', 'validation_loss')
        """
        return f"{self.prefix}_{metric}"


TEST, VALIDATION = Samples("test", "global"), Samples("validation", "validation")


def samples_to_choose_by(measured: Container[str], metric: str = "accuracy") -> Samples:
    """The samples to choose by, given what was measured: a line of the metrics, or the keys of one.

    >>> samples_to_choose_by({"global_accuracy": 0.7, "validation_accuracy": 0.6}).name
    'validation'
    """
    return VALIDATION if VALIDATION.key(metric) in measured else TEST


def samples_to_report(measured: Container[str], metric: str = "accuracy") -> Samples:
    """The samples whose accuracy is the result, given what was measured.

    >>> samples_to_report({"global_accuracy": 0.7, "validation_accuracy": 0.6}).name
    'test'
    """
    return VALIDATION if TEST.key(metric) not in measured and VALIDATION.key(metric) in measured else TEST
