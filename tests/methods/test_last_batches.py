"""A batch of one sample has no statistics: what a method teaches on its own goes with the batch before."""

import pytest
import torch
from torch import nn

from fedwidth.data import from_tensors
from fedwidth.data.batches import in_batches
from fedwidth.experiment import Experiment
from small_runs import small


def net():
    torch.manual_seed(0)
    norms = [nn.BatchNorm1d(8), nn.BatchNorm1d(6, track_running_stats=False)]
    return nn.Sequential(nn.Linear(4, 8), norms[0], nn.ReLU(), nn.Linear(8, 6), norms[1], nn.ReLU(), nn.Linear(6, 3))


def data_of(samples):
    draws = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(samples, 4, generator=draws), torch.randint(3, (samples,), generator=draws)
    return from_tensors(inputs, targets, inputs[:20], targets[:20], classes=3)


PUBLIC = ("data.public=0.25", "data.partition=iid", "data.partition_options={}", "rounds=2", "training.batch_size=100")
CASES = {
    "dsfl": (60, "method.options={samples=9, batch_size=4, epochs=2}"),
    "fedgkt": (72, "method.options={batch_size=8, epochs=2}"),  # six clients with nine samples each
}


@pytest.mark.parametrize("name", CASES)
def test_one_sample_that_is_left_goes_with_the_batch_before(name):
    samples, options = CASES[name]
    run = Experiment(small(f"method.name={name}", options, *PUBLIC), model=net(), data=data_of(samples))
    assert name != "fedgkt" or set(run.partition.sizes.tolist()) == {9}
    state = run.run().server.state
    assert all(bool(torch.isfinite(tensor).all()) for tensor in state.values())


@pytest.mark.parametrize("name", ["dsfl", "fedgkt", "feddf"])
def test_so_it_does_where_a_model_only_answers(name, monkeypatch):
    """Norms without running statistics have none then either."""
    for module in ("dsfl", "fedgkt", "shared.distillation"):
        monkeypatch.setattr(f"fedwidth.methods.{module}.MAX_ANSWERED", 8)
    options = {"dsfl": "{samples=9, epochs=1}", "fedgkt": "{epochs=1}", "feddf": "{steps=1, batch_size=9}"}[name]
    samples = {"dsfl": 60, "fedgkt": 72, "feddf": 36}[name]  # nine public ones, or as many of each client
    Experiment(
        small(f"method.name={name}", f"method.options={options}", *PUBLIC), model=net(), data=data_of(samples)
    ).run()


@pytest.mark.parametrize(("samples", "size"), [(0, 3), (1, 3), (3, 3), (5, 3), (6, 3), (3, 1), (2, 5)])
def test_other_batches_are_as_they_were(samples, size):
    found, plain = in_batches(torch.arange(samples), size), torch.split(torch.arange(samples), size)
    assert [batch.tolist() for batch in found] == [batch.tolist() for batch in plain if len(batch)]
