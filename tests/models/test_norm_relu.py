"""Batch norm and ReLU in one operation: what a norm that rectifies computes, and, on a GPU, the kernels."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedwidth.models import StaticBatchNorm2d, build, collect_statistics, fuse_norms, norm_relu, static_norm

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
EPSILON = 1e-5


def activation(shape, dtype=torch.float32, device="cpu"):
    """Channels with means of their own, some of them far from 0, in channels-last memory."""
    generator = torch.Generator().manual_seed(sum(shape))
    channel = torch.randn(1, shape[1], 1, 1, generator=generator)
    x = torch.randn(shape, generator=generator) * (channel.abs() + 0.1) + 5 * channel
    return x.to(device, dtype).contiguous(memory_format=torch.channels_last)


def test_a_processor_has_no_such_operation_and_models_stay_as_they_are():
    model = build("preresnet18", widths=[4, 4, 8, 8])
    fuse_norms(model, torch.device("cpu"))
    assert not any(norm.rectifies for norm in model.modules() if isinstance(norm, StaticBatchNorm2d))
    assert not any(isinstance(module, nn.Identity) for module in model.modules())


@pytest.mark.parametrize("name", ["preresnet18", "cnn"])
def test_norms_that_rectify_have_the_same_names_and_values(monkeypatch, name):
    torch.manual_seed(0)
    plain, fused = build(name), build(name)
    fused.load_state_dict(plain.state_dict())
    monkeypatch.setattr(static_norm, "has_norm_relu", lambda device: True)
    fuse_norms(fused, torch.device("cpu"))
    norms = [norm for norm in fused.modules() if isinstance(norm, StaticBatchNorm2d)]
    assert norms
    assert all(norm.rectifies for norm in norms)
    assert not any(isinstance(module, nn.ReLU) for module in fused.modules())
    assert list(fused.state_dict()) == list(plain.state_dict())
    x = torch.randn(6, 3, 32, 32) if name == "preresnet18" else torch.randn(6, 1, 28, 28)
    assert torch.equal(plain.train()(x), fused.train()(x))
    for model in (plain, fused):
        collect_statistics(model, [x])
    assert torch.equal(plain.eval()(x), fused.eval()(x))


def test_a_norm_without_a_relu_behind_it_stays(monkeypatch):
    monkeypatch.setattr(static_norm, "has_norm_relu", lambda device: True)
    model = nn.Sequential(StaticBatchNorm2d(3), nn.GELU(), nn.BatchNorm2d(3), nn.ReLU())
    fuse_norms(model, torch.device("cpu"))
    assert not model[0].rectifies
    assert isinstance(model[3], nn.ReLU)


def test_triton_that_does_not_work_is_said_and_nothing_is_fused(monkeypatch):
    monkeypatch.setattr(norm_relu, "find_spec", lambda name: object())
    monkeypatch.setattr(torch, "ones", lambda *shape, device: torch.zeros(shape))

    def fails(*given):
        raise RuntimeError("Failed to find C compiler\nand more")

    monkeypatch.setattr(norm_relu, "norm_relu", fails)
    norm_relu.has_norm_relu.cache_clear()
    with pytest.warns(UserWarning, match=r"computed apart \(Failed to find C compiler\)"):
        assert not norm_relu.has_norm_relu(torch.device("cuda", 7))
    norm_relu.has_norm_relu.cache_clear()


def of_norm_and_relu(x, weight, bias, behind):
    """What PyTorch computes apart: the activation, and the gradients of x, weight and bias."""
    given = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
    y = F.relu(F.batch_norm(given[0], None, None, given[1], given[2], training=True, eps=EPSILON))
    return y, *torch.autograd.grad(y, given, behind)


def of_one_operation(x, weight, bias, behind):
    given = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
    assert norm_relu.takes_norm_relu(given[0])
    y = norm_relu.norm_relu(*given, EPSILON)
    return y, *torch.autograd.grad(y, given, behind)


@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "shape", [(128, 64, 32, 32), (66, 4, 32, 32), (128, 512, 4, 4), (7, 24, 5, 5), (3, 100, 3, 3), (2, 3, 5, 5)]
)
def test_the_kernels_compute_what_double_precision_does(shape, dtype):
    x, behind = activation(shape, dtype, "cuda"), activation(shape[::-1], dtype, "cuda").reshape(shape)
    behind = behind.contiguous(memory_format=torch.channels_last)
    weight, bias = torch.rand(shape[1], device="cuda") + 0.5, torch.randn(shape[1], device="cuda")
    found = of_one_operation(x, weight, bias, behind)
    exact = of_norm_and_relu(*(tensor.double() for tensor in (x, weight, bias, behind)))
    rounding = 1e-2 if dtype == torch.bfloat16 else 1e-4
    for one, other in zip(found, exact, strict=True):
        assert (one.double() - other).norm() <= rounding * other.norm() + 1e-6
    again = of_one_operation(x, weight, bias, behind)
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True)), "the same bits every time"


@gpu
def test_gradients_in_another_layout_are_taken_too():
    x, weight, bias = activation((8, 16, 6, 6), device="cuda"), torch.ones(16, device="cuda"), torch.zeros(16).cuda()
    behind = torch.randn(8, 16, 6, 6, device="cuda")  # channels first
    found = of_one_operation(x, weight, bias, behind)
    exact = of_norm_and_relu(*(tensor.double() for tensor in (x, weight, bias, behind)))
    assert all(torch.allclose(one.double(), other, atol=1e-4) for one, other in zip(found, exact, strict=True))


@gpu
def test_double_precision_and_single_values_are_left_to_pytorch():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert norm_relu.has_norm_relu(torch.device("cuda"))
    assert not norm_relu.takes_norm_relu(activation((4, 8, 3, 3), torch.float64, "cuda"))
    assert not norm_relu.takes_norm_relu(torch.ones(1, 8, 1, 1, device="cuda"))
    assert not norm_relu.takes_norm_relu(torch.ones(4, 8, 3, 3, device="cuda"))
