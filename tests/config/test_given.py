"""What is given in Python and is of the wrong kind, or of something else: one line, before anything is trained."""

from __future__ import annotations

import warnings
from dataclasses import replace
from threading import Lock
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedwidth.config.given import as_in_recipe
from fedwidth.config.schema import keys
from fedwidth.data import Partition, Shares, from_clients, from_tensors, make_partition
from fedwidth.data.checks import check_partition
from fedwidth.errors import DataError, FedwidthError, OptionError
from fedwidth.experiment import Experiment
from fedwidth.settings import (
    ArchitectureSettings,
    DataSettings,
    DeviceSettings,
    EvaluationSettings,
    MethodSettings,
    ModelSettings,
    Settings,
    TrainingSettings,
)

X, Y = torch.randn(60, 4), torch.arange(60) % 3
DATA = from_tensors(X, Y, X, Y)
SETTINGS = Settings(rounds=1, data=DataSettings(clients=4), devices=DeviceSettings(per_round=2))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def uncopied() -> nn.Module:
    """A model that holds what Python copies for nobody."""
    model = network()
    model.guard = Lock()
    return model


def by_hand(train, targets, test=None) -> Partition:
    """Samples of one client."""
    shares = [Shares.of([0 for _ in samples], 1) for samples in (train, test or train)]
    return Partition("by hand", *shares, targets)


NOTHING = Shares.of([], 1), Y


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": nn.Sequential}, "model must be a torch.nn.Module, not the class Sequential"),
        ({"model": "cnn"}, "model must be a torch.nn.Module, not a str"),
        ({"model": network().to("meta")}, "model is on the meta device"),
        ({"data": (X, Y)}, "data must be fedwidth.data.Data, as from_tensors"),
        ({"data": TensorDataset(X, Y)}, "as from_tensors, from_dataset and from_clients make it, not a TensorDataset"),
        ({"method": "fedrolex"}, "method must be a fedwidth.Method"),
        ({"objective": nn.CrossEntropyLoss()}, "objective must be a fedwidth.Objective, or its name, not a CrossEntr"),
        ({"partition": "iid"}, "partition must be a fedwidth.data.Partition"),
        (
            {"partition": make_partition(from_tensors(X[:30], Y[:30], X, Y), "iid", clients=4)},
            "the partition is of 30 training samples, but the data has 60",
        ),
        ({"partition": by_hand(range(50), Y)}, "the partition is of 50 training samples, but the data has 60"),
        ({"partition": by_hand(range(60), Y, range(70))}, "the partition is of 70 test samples, but the data has 60"),
        (
            {"partition": Partition("mine", Shares(torch.tensor([0, 60]), torch.tensor([0, 2])), *NOTHING)},
            "the partition has training samples from 0 to 60, but those of the data are numbered from 0 to 59",
        ),
        ({"partition": by_hand(range(60), (Y + 1) % 3)}, "the partition has other labels than the training samples"),
        (
            {"partition": by_hand(range(60), Y[:, None])},
            r"the labels of the partition have the shape \[60, 1\], those of the data \[60\]",
        ),
        ({"model": uncopied()}, "the model cannot be copied with copy.deepcopy: cannot pickle '_thread.lock'"),
        ({"settings": {"rounds": 1}}, "settings must be fedwidth.settings.Settings, not a dict"),
        ({"settings": replace(SETTINGS, data="digits")}, r"settings.data must be DataSettings\(…\), not a str"),
    ],
)
def test_refused(change, message):
    given = {"settings": SETTINGS, "model": network(), "data": DATA} | change
    with pytest.raises(FedwidthError, match=message):
        Experiment(given.pop("settings"), **given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device": "gpu"}, "^device must be cpu, cuda or cuda:N, not 'gpu'$"),
        ({"training": TrainingSettings(schedule="multistep")}, "training.milestones must name at least one round$"),
        ({"training": TrainingSettings(milestones=[3, 1])}, "^training.milestones must be rounds in rising order"),
        ({"evaluation": EvaluationSettings(also=[-1, 0])}, "^evaluation.also must be rounds, counted from 1, not"),
        ({"evaluation": EvaluationSettings(capacities=[0.5, 0.5])}, "must name each capacity once, not 0.5 twice$"),
        (
            {"evaluation": EvaluationSettings(every=2, capacities_every=3)},
            r"must be a multiple of evaluation.every \(2",
        ),
        ({"model": ModelSettings(fresh="0.*")}, "^model.fresh names tensors that are not read from model.weights"),
        ({"data": DataSettings(options={"x": 1})}, "^unknown option of data set 'digits' 'x'"),
        ({"method": MethodSettings("fedrolex", {"stop": 1})}, "^unknown option of method 'fedrolex' 'stop'"),
    ],
)
def test_what_is_no_matter_of_dealing_is_refused_with_a_partition_as_without(change, message):
    for partition in (None, make_partition(DATA, "iid", clients=4)):
        with pytest.raises(OptionError, match=message):
            Experiment(replace(SETTINGS, **change), model=network(), data=DATA, partition=partition)


def test_with_a_partition_settings_may_say_nothing_of_dealing():
    dealt = DataSettings(clients=1, partition="mine", partition_options={"x": 1})
    settings = replace(SETTINGS, data=dealt, evaluation=EvaluationSettings(test=False))
    partition = make_partition(DATA, "iid", clients=4, validation=0.2)
    Experiment(settings, model=network(), data=DATA, partition=partition)


def test_a_partition_may_do_without_labels():
    check_partition(by_hand(range(60), torch.zeros(60)), DATA)  # numbers with a fraction are no labels


def test_what_is_excluded_and_nobody_has_is_said():
    devices = DeviceSettings("1:1 1/2:1", per_round=2, excluded=[0.26])
    with pytest.warns(UserWarning, match="names 0.26, which no device has: their capacities are 1, 0.5"):
        Experiment(replace(SETTINGS, devices=devices), model=network(), data=DATA)


@pytest.mark.parametrize(
    ("devices", "named"),
    [
        (DeviceSettings("1:1 1/2:1", profiles={"1/3": {"*": 0.5}}), "profiles names 1/3"),
        (DeviceSettings("1:1 1/2:1", rates={"all": 1e9, "1/3": 1e8, "1/2": 1e8}), "rates names 1/3"),
        (DeviceSettings("1:1 1/2:1", bandwidth={"all": 1e9, "0.3": 1e8}), "bandwidth names 0.3"),
    ],
)
def test_what_is_said_of_devices_that_nobody_has_is_said(devices, named):
    with pytest.warns(UserWarning, match=f"^devices.{named}, which no device has: their capacities are 1, 0.5$"):
        Experiment(replace(SETTINGS, devices=replace(devices, per_round=2)), model=network(), data=DATA)


def test_tables_may_name_more_capacities_than_there_are_where_each_is_named():
    profiles, rates = {"1/4": {"*": 0.5}}, {"1": 4e9, "1/2": 2e9, "1/4": 1e9}
    devices = DeviceSettings("1:1 1/2:1", per_round=2, rates=rates, profiles=profiles)
    settings = replace(SETTINGS, devices=devices, evaluation=EvaluationSettings(capacities=[0.25]))
    whole = replace(SETTINGS, devices=DeviceSettings("a1", per_round=2, profiles=profiles))
    with warnings.catch_warnings(action="error"):
        for each in (settings, whole):
            Experiment(each, model=network(), data=DATA)


def test_a_client_without_samples_is_named():
    own = [TensorDataset(X[:size], Y[:size]) for size in (0, 20, 0, 20)]
    with pytest.raises(DataError, match="^the training data set of client 0, 2 has no samples"):
        from_clients(own, TensorDataset(X, Y))
    from_clients(own[1::2], own[:2])  # to test on a client may have none


def test_clients_that_have_a_data_set_each_are_not_dealt_anew_in_silence():
    data = from_clients([TensorDataset(X[part::4], Y[part::4]) for part in range(4)], TensorDataset(X, Y), cache=None)
    with pytest.warns(UserWarning, match="set it to 'natural' to leave them where they are"):
        Experiment(SETTINGS, model=network(), data=data)
    with warnings.catch_warnings(action="error"):
        Experiment(replace(SETTINGS, data=DataSettings(clients=4, partition="natural")), model=network(), data=data)


def test_tuples_are_lists_in_settings(tmp_path):
    tuples, lists = (
        replace(
            SETTINGS,
            devices=DeviceSettings(kind([1, 0.5, 0.25, 0.25]), per_round=2, excluded=kind([0.25])),
            evaluation=EvaluationSettings(capacities=kind([1, 0.5]), also=kind([1])),
        )
        for kind in (tuple, list)
    )
    made = [Experiment(settings, model=network(), data=DATA) for settings in (tuples, lists)]
    assert made[0].settings == made[1].settings
    result = made[0].run(tmp_path / "run")
    assert list(result.summary["capacity_accuracy"]) == ["1", "0.5"]
    tables = replace(SETTINGS, model=ModelSettings("mlp", options={"hidden": (8,)}))
    Experiment(tables, data=DATA).run(tmp_path / "tables")
    assert Experiment(tables, data=DATA).run(tmp_path / "tables", resume=True).summary["rounds"] == 1
    with pytest.raises(FedwidthError, match=r"^evaluation.capacities must be a list of numbers, .*, not 2$"):
        Experiment(replace(SETTINGS, evaluation=EvaluationSettings(capacities=(1, 2))), model=network(), data=DATA)


@pytest.mark.parametrize(
    ("section", "name", "texts", "numbers"),
    [
        ("evaluation", "capacities", [1, "1/2", "1/4"], [1, 0.5, 0.25]),
        ("devices", "capacities", [1, "1/2", 0.25, "0.25"], [1, 0.5, 0.25, 0.25]),
        ("devices", "excluded", ["1/4"], [0.25]),
        ("model", "width", "1/2", 0.5),
        ("models", "capacities", ("1/2", 1), [0.5, 1]),
    ],
)
def test_fractions_are_the_numbers_they_are_in_a_recipe(section, name, texts, numbers):
    def settings(value):
        record = ArchitectureSettings() if section == "models" else getattr(SETTINGS, section)
        changed = replace(record, **{name: value})
        return replace(SETTINGS, **{section: [changed] if section == "models" else changed})

    assert as_in_recipe(settings(texts)) == settings(numbers)


def test_tables_that_go_by_numbers_go_by_their_text(tmp_path):
    def made(one, half):
        devices = DeviceSettings(
            per_round=2, capacities="a1-b1", rates={one: 4e9, half: 2e9}, bandwidth={one: 1e6, half: 1e6}
        )
        return Experiment(replace(SETTINGS, devices=devices), model=network(), data=DATA)

    numbers, texts = made(1, 0.5), made("1", "0.5")
    assert numbers.settings == texts.settings
    (line,) = numbers.run(tmp_path / "numbers").metrics
    assert line["device_seconds"] > 0
    with pytest.raises(OptionError, match="devices.rates goes by capacity, such as '1/4', or 'all', not '2'"):
        made(2, 0.5)


@pytest.mark.parametrize("named", [name for name, key in keys().items() if key.type == dict[str, Any]])
@pytest.mark.parametrize("table", [None, ["a"]])
def test_what_is_no_table_is_refused(named, table):
    section, _, name = named.partition(".")
    changed = replace(getattr(SETTINGS, section), **{name: table})
    with pytest.raises(OptionError, match=rf"^{named} must be a table, not"):
        Experiment(replace(SETTINGS, **{section: changed}), model=network(), data=DATA)


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (DeviceSettings(profiles={"1/4": {1: 0.5}}), "^devices.profiles must be a table that goes by text, not by 1$"),
        (DeviceSettings(rates={None: 1e9}), "^devices.rates must be a table that goes by text, not by None$"),
        (DeviceSettings(rates={1: 1e9, "1": 2e9}), "^rates names '1' twice, as text and as a number$"),
    ],
)
def test_tables_go_by_text_inside_too(devices, message):
    with pytest.raises(OptionError, match=message):
        Experiment(replace(SETTINGS, devices=devices), model=network(), data=DATA)


def test_a_run_with_fractions_is_the_one_with_their_numbers(tmp_path):
    def left_by(width, excluded, listed, measured, place):
        settings = replace(
            SETTINGS,
            model=ModelSettings("mlp", {"hidden": [8]}, width=width),
            devices=DeviceSettings(listed, excluded=excluded, per_round=4),
            evaluation=EvaluationSettings(capacities=measured),
        )
        done = Experiment(settings, data=DATA).run(tmp_path / place)
        return (tmp_path / place / "config.toml").read_text(), done.server.state

    config, state = left_by("1/2", ["1/4"], [1, "1/2", "1/4", 0.5], [1, "1/2"], "texts")
    other, same = left_by(0.5, [0.25], [1, 0.5, 0.25, 0.5], [1, 0.5], "numbers")
    assert config == other
    assert all(torch.equal(state[name], same[name]) for name in state)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(evaluation=EvaluationSettings(capacities=[1, "1/0"])), "evaluation.capacities must be a list of nu"),
        (Settings(devices=DeviceSettings([1, "half"])), "devices.capacities must be text, or a list of numbers"),
        (Settings(devices=DeviceSettings(excluded=["3/2"])), "devices.excluded must be a list of numbers"),
        (Settings(model=ModelSettings(width="a")), "model.width must be a number above 0 and at most 1"),
    ],
)
def test_what_is_no_fraction_is_refused(settings, message, tmp_path):
    with pytest.raises(OptionError, match=message):
        Experiment(settings, data=DATA).run(tmp_path / "run")
    assert not (tmp_path / "run").exists()
