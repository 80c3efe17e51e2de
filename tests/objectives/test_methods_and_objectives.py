"""Every method trains for every objective, or says before training why it cannot."""

from __future__ import annotations

import math

import pytest

from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from fedwidth.methods import methods
from objective_runs import KINDS, settings

SHORT = ["rounds=1", "data.clients=4", "devices.per_round=2", "training.epochs=1", "evaluation.capacities=[]"]
NO_CLASSES = ("regression", "own loss", "multi-label", "segmentation", "own objective")


@pytest.mark.parametrize("kind", ["regression", "multi-label", "segmentation", "token classification", "own objective"])
@pytest.mark.parametrize("name", sorted(methods()))
def test_every_method_for_every_objective(name, kind):
    found = settings(*KINDS[kind], *SHORT, f"method.name={name}")
    if methods()[name].classes and kind in NO_CLASSES:
        with pytest.raises(OptionError, match="for logits of classes, and objective .* has no classes"):
            Experiment(found)
        return
    if name == "fedgkt" and kind == "token classification":  # the model looks at its words again, to leave out padding
        with pytest.raises(
            OptionError, match="FedGKT splits the model after 'hidden', but what comes after it looks at"
        ):
            Experiment(found).run()
        return
    result = Experiment(found).run()
    assert math.isfinite(result.metrics[-1]["train_loss"])
    assert math.isfinite(result.metrics[-1]["global_loss"])


def test_a_loss_that_distils_is_for_classes():
    distilling = ["method.name=fjord", "method.options={distil=true}"]
    with pytest.raises(OptionError, match="FjORD takes what models answer for logits of classes"):
        Experiment(settings(*KINDS["regression"], *SHORT, *distilling))
    Experiment(settings(*KINDS["token classification"], *SHORT, *distilling)).run()
