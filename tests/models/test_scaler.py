"""HeteroFL's scaler acts in training only."""

import pytest
import torch

from fedwidth import models
from fedwidth.errors import CapacityError
from fedwidth.models import Scaler, StaticBatchNorm2d, set_scaler


def test_divides_by_the_rate_in_training_only():
    scaler = Scaler()
    set_scaler(scaler, 0.25)
    x = torch.tensor([1.0, -2.0])
    assert scaler.train()(x).tolist() == [4.0, -8.0]
    assert scaler.eval()(x) is x


def test_full_rate_changes_no_bit():
    x = torch.randn(5, generator=torch.Generator().manual_seed(0))
    assert Scaler().train()(x) is x


@pytest.mark.parametrize(
    ("name", "scalers"),
    [
        ("mlp", 0),
        ("cnn", 4),  # one per block
        ("preresnet18", 17),  # one per norm: two in each of eight blocks, and the last
        ("transformer", 20),  # embedding, six linear layers in each of three layers, decoder
    ],
)
def test_set_scaler_reaches_every_scaler(name, scalers):
    model = models.build(name)
    set_scaler(model, 0.5)
    rates = [module.rate for module in model.modules() if isinstance(module, (Scaler, StaticBatchNorm2d))]
    assert rates == [0.5] * scalers


def test_a_static_norm_with_a_rate_is_a_scaler_and_then_the_norm():
    x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 1e-2
    norm, plain, scaler = StaticBatchNorm2d(3).double(), StaticBatchNorm2d(3).double(), Scaler()
    set_scaler(norm, 1 / 16)
    set_scaler(scaler, 1 / 16)
    assert torch.allclose(norm(x), plain(scaler(x)), rtol=1e-12)
    assert not torch.allclose(norm(x), plain(x), rtol=1e-3)  # epsilon matters at this size, so the rate does


def test_evaluation_does_not_depend_on_the_rate():
    model = models.build("cnn", data_shape=(1, 8, 8), widths=(4, 6)).eval()
    x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    before = model(x)
    set_scaler(model, 0.5)
    assert torch.equal(model(x), before)


def test_training_of_the_transformer_depends_on_the_rate():
    model = models.build("transformer", vocabulary=9, embedding=4, hidden=6, heads=2, head_size=2, dropout=0.0)
    tokens = torch.arange(6)[None]
    before = model(tokens)
    set_scaler(model, 0.5)
    assert not torch.allclose(model(tokens), before)


@pytest.mark.parametrize("rate", [0, -1, 1.5, float("nan")])
def test_bad_rate(rate):
    with pytest.raises(CapacityError, match="above 0 and at most 1"):
        set_scaler(Scaler(), rate)
