"""Batch norm and ReLU in one operation: what a norm that rectifies computes, and, on a GPU, the kernels."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F

from fedwidth.models import build, collect_statistics, norm_relu, preresnet, set_scaler
from fedwidth.models.preresnet import ScaledNorm, fuse_norms

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
EPSILON = 1e-5


def scaled_norms(model):
    return [module for module in model.modules() if isinstance(module, ScaledNorm)]


def activation(shape, dtype=torch.float32, device="cpu"):
    """Channels with means of their own, some of them far from 0, in channels-last memory."""
    generator = torch.Generator().manual_seed(sum(shape))
    channel = torch.randn(1, shape[1], 1, 1, generator=generator)
    x = torch.randn(shape, generator=generator) * (channel.abs() + 0.1) + 5 * channel
    return x.to(device, dtype).contiguous(memory_format=torch.channels_last)


def test_a_processor_has_no_such_operation_and_models_stay_as_they_are():
    model = build("preresnet18", widths=[4, 4, 8, 8])
    fuse_norms(model, torch.device("cpu"))
    assert not any(norm.fused for norm in scaled_norms(model))


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_fused_norms_have_the_same_names_and_the_same_values_where_the_operation_is_not_for_them(monkeypatch, norm):
    torch.manual_seed(0)
    plain, fused = (build("preresnet18", widths=[4, 4, 8, 8], norm=norm) for _ in range(2))
    fused.load_state_dict(plain.state_dict())
    monkeypatch.setattr(preresnet, "has_norm_relu", lambda device: True)
    fuse_norms(fused, torch.device("cpu"))
    assert len(scaled_norms(fused)) == 17
    assert all(each.fused for each in scaled_norms(fused))
    x = torch.randn(6, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    assert torch.equal(plain.train()(x), fused.train()(x))
    for model in (plain, fused):
        collect_statistics(model, [x])
    assert torch.equal(plain.eval()(x), fused.eval()(x))


def test_training_uses_the_operation_and_nothing_else_does(monkeypatch):
    """With the scaler's rate in its epsilon: dividing the input by 1/2 is multiplying epsilon by 1/4."""
    seen = []

    def operation(x, weight, bias, epsilon):
        seen.append(epsilon)
        return F.relu(F.batch_norm(x, None, None, weight, bias, training=True, eps=epsilon))

    monkeypatch.setattr(preresnet, "has_norm_relu", lambda device: True)
    monkeypatch.setattr(preresnet, "takes_norm_relu", lambda x: True)
    monkeypatch.setattr(preresnet, "norm_relu", operation)
    plain = build("preresnet18", widths=[4, 4, 8, 8])
    fused = copy.deepcopy(plain)
    fuse_norms(fused, torch.device("cpu"))
    x = torch.randn(6, 3, 32, 32)
    for model in (plain, fused):
        set_scaler(model, 0.5)
    assert torch.equal(plain.train()(x), fused.train()(x))
    assert seen == [pytest.approx(EPSILON / 4)] * 17
    collect_statistics(fused, [x])
    fused.eval()(x)
    assert len(seen) == 17


def test_triton_that_does_not_work_is_said_and_nothing_is_fused(monkeypatch):
    monkeypatch.setattr(norm_relu, "find_spec", lambda name: object())
    monkeypatch.setattr(torch, "ones", lambda *shape, **given: torch.zeros(shape))

    def fails(*given):
        raise RuntimeError("Failed to find C compiler\nand more")

    monkeypatch.setattr(norm_relu, "norm_relu", fails)
    norm_relu.has_norm_relu.cache_clear()
    with pytest.warns(UserWarning, match=r"computed apart \(Failed to find C compiler\)"):
        assert not norm_relu.has_norm_relu(torch.device("cuda", 7))
    norm_relu.has_norm_relu.cache_clear()


def test_a_full_device_says_nothing_about_triton(monkeypatch):
    monkeypatch.setattr(norm_relu, "find_spec", lambda name: object())

    def full(*shape, **given):
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(torch, "ones", full)
    norm_relu.has_norm_relu.cache_clear()
    with pytest.raises(torch.OutOfMemoryError):
        norm_relu.has_norm_relu(torch.device("cuda", 7))


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
    rounding = 1e-2 if dtype == torch.bfloat16 else 1e-3  # a value may lie on either side of the ReLU's 0
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


@gpu
def test_what_is_no_number_stays_so():
    x = activation((4, 8, 3, 3), device="cuda")
    x[1, 3, 2, 2] = float("nan")
    y = norm_relu.norm_relu(x, torch.ones(8, device="cuda"), torch.zeros(8, device="cuda"), EPSILON)
    assert y[:, 3].isnan().all()
    assert y[:, [0, 1, 2, 4, 5, 6, 7]].isfinite().all()


@gpu
def test_an_outlier_that_comes_first_costs_little_precision():
    x = activation((64, 4, 32, 32), device="cuda")
    x[0, :, 0, 0] = 1000 * x.std()
    given = x, torch.ones(4, device="cuda"), torch.zeros(4, device="cuda"), torch.ones_like(x)
    (found, *_), (exact, *_) = of_one_operation(*given), of_norm_and_relu(*(tensor.double() for tensor in given))
    assert (found.double() - exact).norm() <= 1e-4 * exact.norm()
