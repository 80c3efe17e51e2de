"""Static batch norm against statistics computed by hand."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from fedwidth.errors import DataError
from fedwidth.models import StaticBatchNorm2d, collect_statistics, forget_statistics
from fedwidth.models.static_norm import settled_statistics


def batches(number=3, size=4):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, 2, 3, 3, generator=generator) * (k + 1) + k for k in range(number)]


def normalised(x, mean, variance):
    return (x - mean[None, :, None, None]) / (variance[None, :, None, None] + 1e-5).sqrt()


def test_training_uses_the_batch_and_tracks_nothing():
    norm, x = StaticBatchNorm2d(2).train(), batches()[1]
    before = copy.deepcopy(norm.state_dict())
    expected = normalised(x, x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0))
    torch.testing.assert_close(norm(x), expected)
    assert all(torch.equal(value, before[key]) for key, value in norm.state_dict().items())


def test_evaluation_uses_the_batch_while_nothing_was_collected():
    norm, x = StaticBatchNorm2d(2), batches()[1]
    torch.testing.assert_close(norm.eval()(x), norm.train()(x))


@pytest.mark.parametrize("kind", [StaticBatchNorm2d, nn.BatchNorm2d])
def test_collected_statistics_are_the_mean_over_batches(kind):
    norm, data = kind(2), batches()
    collect_statistics(norm, data)
    mean = torch.stack([x.mean((0, 2, 3)) for x in data]).mean(0)
    variance = torch.stack([x.var((0, 2, 3)) for x in data]).mean(0)
    torch.testing.assert_close(norm.running_mean, mean)
    torch.testing.assert_close(norm.running_var, variance)
    assert not norm.training
    torch.testing.assert_close(norm(data[0]), normalised(data[0], mean, variance))


@pytest.mark.parametrize("form", [lambda x: (x,), lambda x: {"input": x}], ids=["arguments", "by name"])
def test_batches_are_what_a_model_takes(form):
    norm, other, data = nn.BatchNorm2d(2), nn.BatchNorm2d(2), batches()
    collect_statistics(norm, data)
    collect_statistics(other, [form(x) for x in data])
    assert torch.equal(norm.running_mean, other.running_mean)


def test_settled_statistics_give_the_same_bits():
    norm, data = StaticBatchNorm2d(2), batches()
    collect_statistics(norm, data)
    before = norm(data[0])
    with settled_statistics(norm):
        assert torch.equal(norm(data[0]), before)
    forget_statistics(norm)
    assert not torch.equal(norm(data[0]), before)


def test_collecting_again_starts_afresh():
    norm, data = StaticBatchNorm2d(2), batches()
    collect_statistics(norm, data)
    collect_statistics(norm, data[:1])
    torch.testing.assert_close(norm.running_mean, data[0].mean((0, 2, 3)))
    assert norm.num_batches_tracked == 1


def test_training_after_collecting_tracks_nothing():
    norm, data = StaticBatchNorm2d(2), batches()
    collect_statistics(norm, data[:1])
    before = norm.running_mean.clone()
    norm.train()(data[2])
    assert torch.equal(norm.running_mean, before)


def test_forgetting_returns_to_batch_statistics():
    norm, data = StaticBatchNorm2d(2), batches()
    collect_statistics(norm, data)
    forget_statistics(norm)
    torch.testing.assert_close(norm(data[1]), normalised(data[1], *batch_statistics(data[1])))


def batch_statistics(x):
    return x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)


def test_the_state_carries_what_was_collected():
    norm, data = StaticBatchNorm2d(2), batches()
    collect_statistics(norm, data)
    other = StaticBatchNorm2d(2).eval()
    assert torch.equal(functional_call(other, norm.state_dict(), (data[0],)), norm(data[0]))
    other.load_state_dict(norm.state_dict())
    assert torch.equal(other(data[0]), norm(data[0]))


def test_evaluation_works_under_vmap_with_different_states():
    data = batches()
    collected, fresh = StaticBatchNorm2d(2), StaticBatchNorm2d(2).eval()
    collect_statistics(collected, data)
    states = {key: torch.stack([value, fresh.state_dict()[key]]) for key, value in collected.state_dict().items()}
    both = vmap(lambda state: functional_call(fresh, state, (data[0],)))(states)
    torch.testing.assert_close(both, torch.stack([collected(data[0]), fresh(data[0])]))


def test_other_layers_do_not_train_while_statistics_are_collected():
    model = nn.Sequential(nn.Dropout(0.9), nn.BatchNorm2d(2, momentum=0.3))
    x = batches()[0]
    collect_statistics(model.train(), [x])
    torch.testing.assert_close(model[1].running_mean, x.mean((0, 2, 3)))
    assert model[1].momentum == 0.3
    assert not any(module.training for module in model.modules())


def test_a_tuple_is_the_arguments_of_the_model():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = StaticBatchNorm2d(2)

        def forward(self, a, b):
            return self.norm(a + b)

    model, (first, second) = Sum(), batches(2)
    collect_statistics(model, [(first, second)])
    torch.testing.assert_close(model.norm.running_mean, (first + second).mean((0, 2, 3)))


def test_norms_without_statistics_and_models_without_norms_are_left_alone():
    model = nn.Sequential(nn.BatchNorm2d(2, track_running_stats=False))
    collect_statistics(model, [])
    assert model[0].running_mean is None


def test_no_data_is_an_error_and_leaves_the_model_usable():
    norm = StaticBatchNorm2d(2)
    with pytest.raises(DataError, match="at least one batch"):
        collect_statistics(norm, iter(()))
    assert not norm.collecting
    assert not norm.training


def test_a_failing_batch_leaves_no_module_collecting():
    norm = StaticBatchNorm2d(2)
    with pytest.raises(RuntimeError):
        collect_statistics(norm, [torch.zeros(2, 5, 3, 3)])
    assert not norm.collecting
    assert not norm.training


def test_gradients_pass_in_evaluation():
    norm, x = StaticBatchNorm2d(2).eval(), batches()[0].requires_grad_()
    norm(x).sum().backward()
    assert x.grad is not None
