"""A batch of one sample has no batch statistics: a run that would fail on one is refused before its first round."""

import pytest
import torch
from torch import nn

from fedwidth.data import Partition, Shares, from_tensors
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from small_runs import small

NORMED = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
PLAIN = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
PIXELS = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 3))


def run(*changes, sizes=(8, 9, 9), model=NORMED, shape=(6,), **more):
    """One round of clients with so many samples in batches of four."""
    x, y = torch.randn(sum(sizes), *shape), torch.arange(sum(sizes)) % 3
    owners = Shares.of(torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)), len(sizes))
    data = from_tensors(x, y, x, y, kind="images" if len(shape) > 1 else "tensors")
    settings = small("rounds=1", "training.batch_size=4", *changes)
    Experiment(settings, model=model, data=data, partition=Partition("mine", owners, owners, y), **more).run()


def test_a_run_that_would_fail_in_batch_norm_is_refused_in_one_line():
    with pytest.raises(OptionError) as caught:
        run()
    assert str(caught.value).startswith(
        "client 1 (and 1 more) has 9 samples, so with training.batch_size = 4 its last batch has one, which the model"
        " cannot train on (Expected more than 1 value per channel"
    )
    with pytest.raises(OptionError, match="client 0 has 9 samples"):
        run("devices.per_round=2", sizes=(9, 8))
    with pytest.raises(OptionError, match="training.batch_size = 1 "):
        run("training.batch_size=1", sizes=(8, 8, 8))


def test_where_a_client_has_one_sample_in_all_no_batch_size_is_asked_for():
    with pytest.raises(OptionError) as caught:
        run(sizes=(9, 1, 1))
    assert str(caught.value).startswith("client 1 (and 1 more) has 1 sample, which the model cannot train on with any")
    assert str(caught.value).endswith(": choose a partition that gives it more, or a model with group norm")


def test_the_option_that_the_message_names_helps():
    x, y, users = torch.randn(20, 6), torch.arange(20) % 3, torch.tensor([0] * 9 + [1] * 10 + [2])
    data = from_tensors(x, y, x, y, train_users=users, test_users=users)
    plain = ("rounds=1", "training.batch_size=20", "data.partition=natural", "devices.per_round=2")
    with pytest.raises(OptionError, match=r"client 2 has 1 sample, .* data.partition_options = \{ min_size = 2"):
        Experiment(small(*plain, "data.clients=3", "data.partition_options={}"), model=NORMED, data=data)
    left = small(*plain, "data.clients=2", "data.partition_options={min_size=2}")
    assert Experiment(left, model=NORMED, data=data).run().summary["global_accuracy"] >= 0


@pytest.mark.parametrize(
    "case",
    [
        pytest.param({"changes": ["training.batch_size=3"]}, id="another batch size"),
        pytest.param({"changes": ["training.steps=2"]}, id="so few steps that nobody gets there"),
        pytest.param({"model": PLAIN}, id="no batch norm"),
        pytest.param({"model": PIXELS, "shape": (1, 6, 6)}, id="several pixels of one picture"),
        pytest.param(
            {"changes": ["data.clients=3", "devices.capacities=[1, 0.25, 0.25]", "devices.excluded=[0.25]"]},
            id="who is excluded",
        ),
    ],
)
def test_where_nothing_would_fail_nothing_is_refused(case):
    run(*case.pop("changes", []), **case)


def test_of_several_architectures_that_of_the_client_counts():
    """Clients 1 and 2 have a last batch of one sample, and hold another network than client 0."""
    several = ["data.clients=3", "devices.capacities=[1, 0.25, 0.25]", "method.name=feddf", "method.options.steps=1"]
    x, y = torch.randn(20, 6), torch.arange(20) % 3
    more = {"public": from_tensors(x, y, x, y)}
    run(*several, model=NORMED, models={0.25: PLAIN}, **more)
    with pytest.raises(OptionError, match=r"client 1 \(and 1 more\) has 9 samples"):
        run(*several, model=PLAIN, models={0.25: NORMED}, **more)
