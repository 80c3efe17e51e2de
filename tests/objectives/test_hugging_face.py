"""Models of Hugging Face: inputs by name, attention masks, outputs that are no tensors."""

from __future__ import annotations

import pytest

from fedwidth.config.read import read_settings
from fedwidth.experiment import Experiment
from small_runs import same

pytest.importorskip("transformers")

RECIPE = """
rounds = 8
data = { name = "hugging_face:text", clients = 4, partition = "labels" }
model.name = "hugging_face:classifier"
devices = { per_round = 2, capacities = "1:1 1/2:1" }
training = { optimiser = "adam", lr = 0.01, batch_size = 8 }
evaluation = { every = 8, capacities = [0.5] }
engine = "serial"
"""


def run(*changes):
    return Experiment(read_settings(RECIPE, changes).main).run()


def test_a_text_classifier_with_attention_masks():
    result = run("data.partition=iid", "evaluation.every=1")
    first, last = result.metrics[0], result.metrics[-1]
    assert last["global_loss"] < 0.9 * first["global_loss"]
    assert last["global_accuracy"] > 0.6
    assert last["capacity_accuracy"]["0.5"] > 0.5
    assert len(last["local_quantiles"]) == 5


def test_masked_words_change_nothing():
    """What stands where the mask is 0 reaches neither training nor evaluation."""
    one, other = run("rounds=2"), run("rounds=2", "data.options={padding=1}")
    assert one.summary["global_loss"] == pytest.approx(other.summary["global_loss"], rel=1e-5)
    assert one.metrics[-1]["train_loss"] == pytest.approx(other.metrics[-1]["train_loss"], rel=1e-5)


def test_read_as_needed():
    assert same(run("rounds=1").server.state, run("rounds=1", "data.cache=1").server.state)


def test_sequence_to_sequence():
    changes = ["data.name=hugging_face:pairs", "data.partition=iid", "model.name=hugging_face:translator"]
    result = run(*changes, "rounds=4", "training.epochs=2", "training.lr=0.03", "evaluation.every=1")
    losses = [line["global_loss"] for line in result.metrics]
    assert losses[-1] < 2.0, "a guess among thirty words has a loss of log 30 = 3.4, among the four that are said 1.4"
    assert result.summary["global_accuracy"] > 0.15
    assert result.summary["capacity_accuracy"]["0.5"] is not None
