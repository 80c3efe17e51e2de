"""Runs trained as one batch give what they give one by one."""

import pytest

from fedwidth.config import read_settings
from fedwidth.data import from_tensors
from fedwidth.engines.packed import run_packed
from fedwidth.errors import OptionError, UpdateError
from fedwidth.experiment import Experiment, build_model


def experiments(*changes_of_each):
    base = ["rounds=3", "evaluation.every=1", "model.name=mlp", "model.options={hidden=[16,8]}", "engine=vectorised"]
    base += ["training.lr=0.05", "data.clients=8", "devices.per_round=6"]
    found, data = [], None
    for changes in changes_of_each:
        settings = read_settings("quickstart", [*base, *changes]).main
        if data is None:
            digits = Experiment(settings).data
            splits = [digits.transform(s.inputs).double() for s in (digits.train, digits.test)]
            data = from_tensors(splits[0], digits.train.targets, splits[1], digits.test.targets, kind="images")
        found.append(Experiment(settings, model=build_model(settings, data).double(), data=data))
    return found


VARIANTS = (
    ["seed=1"],
    ["seed=2", "method.name=heterofl"],
    ["seed=3", "method.name=fedminoccurances", "data.partition=dirichlet", "data.partition_options={alpha=1.0}"],
    ["seed=1", "method.name=fedbrb", "training.lr=0.02"],
)


def test_packed_runs_equal_single_runs(tmp_path):
    single = [run.run() for run in experiments(*VARIANTS)]
    together = experiments(*VARIANTS)
    packed = run_packed(
        [run.trainer for run in together],
        lambda number, engine: together[number].run(tmp_path / str(number), engine=engine),
    )
    for one, other in zip(single, packed, strict=True):
        worst = max(float((one.server.state[n] - other.server.state[n]).abs().max()) for n in one.server.state)
        assert worst < 1e-10
        assert one.summary["global_accuracy"] == other.summary["global_accuracy"]
    assert (tmp_path / "2" / "summary.json").exists()


def test_runs_of_different_length_do_not_wait_for_ever():
    runs = experiments(["rounds=1"], ["rounds=3", "seed=2"])
    results = run_packed([run.trainer for run in runs], lambda number, engine: runs[number].run(engine=engine))
    assert [len(result.metrics) for result in results] == [1, 3]


def test_a_run_that_fails_fails_the_pack_with_its_error():
    runs = experiments(["seed=1"], ["seed=2", "training.lr=1e300"])
    with pytest.raises(UpdateError, match="not finite"):
        run_packed([run.trainer for run in runs], lambda number, engine: runs[number].run(engine=engine))


def test_runs_of_another_shape_are_refused():
    runs = experiments(["seed=1"], ["seed=2", "training.batch_size=8"])
    with pytest.raises(OptionError, match="cannot train as one batch: training.batch_size differs"):
        run_packed([run.trainer for run in runs], lambda number, engine: runs[number].run(engine=engine))
    strangers = experiments(["seed=1"]) + experiments(["seed=2"])
    with pytest.raises(OptionError, match="they do not share one data set in memory"):
        run_packed([run.trainer for run in strangers], lambda number, engine: strangers[number].run(engine=engine))
