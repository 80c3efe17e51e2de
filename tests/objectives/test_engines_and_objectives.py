"""Every engine trains for every objective with the result of the serial one, or says why not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedwidth.config.read import read_settings
from fedwidth.data.trees import mapped
from fedwidth.engines import choose_engine
from fedwidth.engines.limits import why_not_train
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from fedwidth.objectives import Objective
from fedwidth.objectives.catalogue import metric_of
from fedwidth.run.lockstep import run_in_lockstep
from objective_runs import KINDS, METRIC, no_fallback, settings
from own_data import write_files
from own_objective import huber, within_one

SHORT = ["rounds=2", "evaluation.every=2", "devices.per_round=4"]


def double(*changes, data=None):
    """A run in double precision, so that engines can be compared closely."""
    settings_of = settings(*SHORT, *changes)
    plain = Experiment(settings_of)
    return Experiment(settings_of, data=data or in_double(plain.data), model=plain.model.double())


def in_double(data):
    def wide(tensor):
        return tensor.double() if tensor.is_floating_point() else tensor

    splits = {
        name: replace(split, inputs=mapped(wide, split.inputs), targets=mapped(wide, split.targets))
        for name, split in (("train", data.train), ("test", data.test))
    }
    return replace(data, **splits)


@pytest.mark.parametrize("engine", ["vectorised", "cuda"])
@pytest.mark.parametrize("kind", KINDS)
def test_flat_engines_agree_with_the_serial_one(kind, engine):
    """Clients have 14 or 15 samples and batches of 8, so that last batches are short and of different lengths."""
    one = double(*KINDS[kind]).run()
    other = double(*KINDS[kind], f"engine={engine}")
    assert why_not_train(other.trainer, engine) is None
    with no_fallback():
        result = other.run()
    for name, tensor in one.server.state.items():
        assert torch.allclose(tensor, result.server.state[name], rtol=0, atol=1e-10), name
    name = METRIC.get(kind, "accuracy")
    assert result.summary[f"global_{name}"] == pytest.approx(one.summary[f"global_{name}"], abs=1e-9)
    assert result.summary["global_loss"] == pytest.approx(one.summary["global_loss"], abs=1e-9)
    assert result.metrics[-1]["train_loss"] == pytest.approx(one.metrics[-1]["train_loss"], abs=1e-9)


@pytest.mark.parametrize("kind", ["regression", "token classification", "own objective"])
@pytest.mark.parametrize("engine", ["vectorised", "cuda"])
def test_packed_runs_agree_with_runs_alone(kind, engine):
    def experiments():
        first = double(*KINDS[kind], f"engine={engine}")
        second = double(*KINDS[kind], f"engine={engine}", "seed=2", data=first.data)
        return [first, second]

    alone = [experiment.run() for experiment in experiments()]
    together = run_in_lockstep(experiments())
    for one, other in zip(alone, together, strict=True):
        for name, tensor in one.server.state.items():
            assert torch.allclose(tensor, other.server.state[name], rtol=0, atol=1e-10), name
        keys = [key for key in one.summary if key.startswith(("global_", "local_", "validation_"))]
        for key in keys:
            assert other.summary[key] == pytest.approx(one.summary[key], abs=1e-9), key


def test_runs_for_other_objectives_are_no_pack():
    first = Experiment(settings(*KINDS["regression"], "engine=vectorised"))
    second = Experiment(
        settings(*KINDS["regression"], "engine=vectorised", "objective.loss=own_objective:huber"), data=first.data
    )
    with pytest.raises(OptionError, match="they are trained for different objectives"):
        run_in_lockstep([first, second])


def test_auto_says_why_it_does_not_stack():
    uneven = Experiment(settings(*KINDS["own loss"], "engine=auto"))
    assert choose_engine(uneven.trainer).reason == (
        "clients have different numbers of samples, and the loss of objective regression may know no target that does"
        " not count"
    )
    even = Experiment(settings(*KINDS["regression"], "engine=auto"))
    assert choose_engine(even.trainer).name == "vectorised"


def test_samples_read_as_needed_in_slots(tmp_path):
    write_files(tmp_path)
    recipe = "rounds = 2\nmodel = { name = 'mlp', options = { hidden = [8] } }\ndata.name = 'own_data:on_disk'"
    changes = [f"data.root={tmp_path}", "data.clients=6", "devices.per_round=3", "engine=cuda", "training.batch_size=7"]
    held = Experiment(read_settings(recipe, changes).main).run()
    read = Experiment(read_settings(recipe, [*changes, "data.cache=1"]).main)
    with no_fallback():
        result = read.run()
    for name, tensor in held.server.state.items():  # batches lie elsewhere in memory, which may move the last bit
        assert torch.allclose(tensor, result.server.state[name], rtol=1e-5, atol=1e-6), name


def test_a_loss_that_cannot_be_sent_to_workers_is_said_beforehand():
    own = Objective("mine", lambda output, targets: huber(output, targets), metric_of(within_one))
    experiment = Experiment(settings(*KINDS["regression"], "engine=processes"), objective=own)
    with pytest.raises(
        OptionError, match="the loss or the metric cannot be sent .*: define them at the top of a module"
    ):
        experiment.run()
