"""Runs on data of one's own, named in a recipe; read into memory or as it is needed."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import TensorDataset

from fedwidth.config.read import read_settings
from fedwidth.data import from_clients, from_dataset, from_tensors, load
from fedwidth.data.own import UNNAMED
from fedwidth.engines import choose_engine
from fedwidth.errors import DataError, OptionError
from fedwidth.experiment import Experiment
from fedwidth.run.cache import Cache
from own_data import write_files
from small_runs import same

RECIPE = """
rounds = 2
model = { name = "mlp", options = { hidden = [8] } }
data = { name = "own_data:on_disk", clients = 6, partition = "labels" }
devices = { per_round = 3, capacities = "a1-b1" }
training.batch_size = 16
evaluation = { every = 2, capacities = [0.5] }
"""


X, Y = torch.zeros(4, 3), torch.arange(4) % 2


def settings(*changes):
    return read_settings(RECIPE, changes).main


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    write_files(folder)
    return f"data.root={folder}"


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_samples_read_as_they_are_needed_give_the_bits_of_samples_in_memory(files, engine):
    held = Experiment(settings(files, "engine=serial")).run()
    lazy = Experiment(settings(files, f"engine={engine}", "workers=2", "data.cache=1"))
    assert lazy.data.is_lazy
    result = lazy.run()
    assert same(held.server.state, result.server.state)
    keys = ("global_accuracy", "global_loss", "local_accuracy", "local_quantiles", "capacity_accuracy")
    assert [held.summary[key] for key in keys] == [result.summary[key] for key in keys]


def test_an_engine_says_why_it_cannot_read_as_needed(files):
    choice = choose_engine(Experiment(settings(files, "data.cache=1")).trainer)
    assert (choice.name, choice.reason.partition(",")[0]) == ("serial", "its samples are read as they are needed")
    with pytest.warns(UserWarning, match="vectorised engine falls back .* read as they are needed"):
        Experiment(settings(files, "data.cache=1", "engine=vectorised")).run()


def test_tensors_and_pairs_of_data_sets():
    one, other = (
        Experiment(settings(f"data.name=own_data:{name}", "engine=serial")).run() for name in ("in_memory", "pair")
    )
    assert same(one.server.state, other.server.state)
    with_seed = Experiment(settings("data.name=own_data:in_memory", "data.options={seed=3}", "engine=serial")).run()
    assert not same(one.server.state, with_seed.server.state)


def test_runs_that_hold_other_samples_in_memory_do_not_share_them(files):
    cache = Cache()
    assert cache.data(settings(files)) is cache.data(settings(files))
    assert cache.data(settings(files, "data.cache=1")).is_lazy


@pytest.mark.parametrize(
    ("function", "name"), [("own_data:in_memory", "in_memory"), ("own_data:with_a_name", "weather")]
)
def test_data_that_nobody_has_named_have_the_name_of_their_function(function, name):
    assert load(function).name == name
    assert from_tensors(X, Y, X, Y).name in UNNAMED
    assert from_dataset(TensorDataset(X, Y), TensorDataset(X, Y)).name in UNNAMED
    assert from_clients([TensorDataset(X, Y)], TensorDataset(X, Y)).name in UNNAMED


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["data.name=nowhere:at_all"], "data set 'nowhere:at_all': cannot import 'nowhere': No module named"),
        (["data.name=own_data:absent"], "'own_data' has no 'absent'"),
        (["data.name=own_data:SAMPLES"], "'SAMPLES' is a int, not a function or class"),
        (
            ["data.name=own_data:broken"],
            r"could not be loaded: FileNotFoundError: no such folder: /nowhere \(own_data.py, line \d+\)$",
        ),
        (["data.name=own_data:nothing"], "must return fedwidth.data.Data, or a pair of data sets .* not a list"),
        (["data.options={partt='x'}"], r"unknown option of data set 'own_data:on_disk' 'partt' \(did you mean 'part'"),
        (["data.name=own_data:in_memory", "data.cache=1"], "'own_data:in_memory' returns data in memory"),
        (["data.name=digits", "data.cache=1"], "data.cache is for data sets of your own, and 'digits' is not"),
        (["data.cache=-1"], "data.cache must be a whole number of at least 0, not -1"),
    ],
)
def test_mistakes(changes, message):
    with pytest.raises((DataError, OptionError), match=message):
        Experiment(settings(*changes))
