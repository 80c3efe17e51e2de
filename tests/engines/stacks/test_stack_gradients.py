"""Stacked models: gradients against each model alone, whatever form their layers take."""

import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.func import functional_call

from fedwidth.config.read import read_settings
from fedwidth.core.index import Index
from fedwidth.engines.flat.layout import Layout, SubLayout
from fedwidth.engines.flat.vectors import make_vectors, reset
from fedwidth.engines.stacks import trial as stack_trial
from fedwidth.engines.stacks.gradients import client_channels_last, gradients_of, ignore_restriding
from fedwidth.engines.stacks.layers import can_stack_layers, clients_per_group, stack_layers
from fedwidth.experiment import Experiment
from fedwidth.models import StaticBatchNorm2d, build
from fedwidth.plan.axis import Units
from fedwidth.settings import TrainingSettings
from fedwidth.training.optimiser import clip
from fedwidth.training.rule import PLAIN
from hand_plans import plan_of


def convolutions():
    """Strides, dilation, one pixel, bias, groups; batch norms that keep nothing."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1),
        StaticBatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 8, 3, padding=2, dilation=2, bias=False),
        nn.BatchNorm2d(8, track_running_stats=False),
        nn.Conv2d(8, 8, 3, padding=1, groups=2),
        nn.Conv2d(8, 16, 1, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


def preresnet():
    return build("preresnet18", widths=[4, 8, 8, 8])


class Standardised(nn.Conv2d):
    def forward(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return nn.functional.conv2d(x, weight, self.bias, self.stride, self.padding)


class Halving(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x) / 2


class Derived(nn.Sequential):
    """Layers derived from those with a stacked form, and a norm that its model keeps in evaluation."""

    def __init__(self):
        layers = [Standardised(3, 4, 3), Halving(4, track_running_stats=False), nn.ReLU(), nn.Conv2d(4, 4, 1)]
        super().__init__(*layers, StaticBatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))

    def train(self, mode=True):
        super().train(mode)
        self[4].eval()
        self[4].settled = True
        return self


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.before = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), StaticBatchNorm2d(4), nn.ReLU())
        self.cells, self.head = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.cells(self.before(x).mean(2).movedim(1, 2))[0][:, -1])


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.heads = nn.Conv2d(3, 24, 3, stride=3), nn.Linear(8, 10)

    def forward(self, x):
        queries, keys, values = self.before(x).flatten(2).movedim(1, 2).unflatten(2, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(queries, keys, values)
        return self.heads(found.mean(2).flatten(1))


@pytest.mark.parametrize("clients", [1, 3, 8])
@pytest.mark.parametrize("make", [convolutions, preresnet, Derived, Recurrent, Attending])
@pytest.mark.parametrize("form", ["plain", "layers", "merged", "merged, channels last"])
def test_gradients_are_those_of_each_model_alone(make, clients, form):
    torch.manual_seed(0)
    module = make().double().train()
    names = [name for name, _ in module.named_parameters()]
    own = {name: torch.stack([torch.randn_like(p) for _ in range(clients)]) for name, p in module.named_parameters()}
    rest = {name: torch.stack([buffer] * clients) for name, buffer in module.named_buffers()}
    inputs, targets = torch.randn(clients, 6, 3, 12, 12).double(), torch.randint(10, (clients, 6))
    expected, losses = [], []
    for client in range(clients):
        mine = {name: own[name][client].clone().requires_grad_() for name in names}
        buffers = {name: buffer[client] for name, buffer in rest.items()}
        loss = nn.functional.cross_entropy(
            functional_call(module, {**mine, **buffers}, (inputs[client],)), targets[client]
        )
        expected.append(torch.autograd.grad(loss, list(mine.values())))
        losses.append(loss.detach())
    if form != "plain" and can_stack_layers(module):
        stack_layers(module, merge=form != "layers")
    with warnings.catch_warnings():
        ignore_restriding()
        laid = client_channels_last(inputs) if form == "merged, channels last" else inputs
        found, sums = gradients_of(module, own, rest, laid, targets, absent=None)
    assert torch.allclose(sums, torch.stack(losses), rtol=1e-12)
    for number, name in enumerate(names):
        alone = torch.stack([gradients[number] for gradients in expected])
        assert torch.allclose(found[number], alone, rtol=1e-9, atol=1e-9), name


def test_only_the_forward_pass_is_within_autocast():
    class Careful(nn.Module):
        """Leaves autocast for a product that must be precise."""

        def __init__(self):
            super().__init__()
            self.head = nn.Linear(12, 10)

        def forward(self, x):
            with torch.autocast("cpu", enabled=False):
                return x.flatten(1) @ self.head.weight.mT + self.head.bias

    module = Careful()
    own = {name: torch.stack([p.detach()] * 2) for name, p in module.named_parameters()}
    x, y = torch.randn(2, 6, 3, 2, 2), torch.randint(10, (2, 6))
    precise, _ = gradients_of(module, own, {}, x, y, absent=None)
    half = torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False)
    found, _ = gradients_of(module, own, {}, x, y, absent=None, forward=half)
    assert all(torch.equal(one, other) for one, other in zip(precise, found, strict=True))


def test_neighbours_merge_until_a_group_has_some_thirty_channels():
    assert [clients_per_group(10, channels, channels) for channels in (3, 4, 8, 16, 32, 512)] == [10, 10, 5, 2, 1, 1]
    assert [clients_per_group(10, channels, 3, most=True) for channels in (3, 100, 103, 205, 2000)] == [10, 10, 5, 2, 1]


def test_losses_are_added_up_in_single_precision_where_models_compute_in_half():
    module = stack_layers(preresnet().train(), merge=True)
    own = {name: torch.stack([p.detach()] * 2) for name, p in module.named_parameters()}
    rest = {name: torch.stack([b] * 2) for name, b in module.named_buffers()}
    x, y = torch.randn(2, 8, 3, 16, 16), torch.randint(10, (2, 8))
    _, precise = gradients_of(module, own, rest, x, y, absent=None)
    forward = torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False)
    found, half = gradients_of(module, own, rest, x, y, absent=None, forward=forward)
    assert half.dtype == torch.float32
    assert all(gradient.dtype == torch.float32 for gradient in found)
    assert not torch.equal(half, precise), "nothing was computed in half precision"
    assert torch.allclose(half, precise, rtol=0.02)


def test_a_norm_that_is_no_number_leaves_nothing_behind():
    cpu = torch.device("cpu")
    plan = plan_of({"w": (Units("g", 4),)})
    layout = Layout(plan, {"w": torch.zeros(4)}, torch.float32)
    sub = SubLayout(layout, Index.whole(plan), cpu)
    module = nn.ParameterDict({"w": torch.zeros(4)})
    weights = make_vectors((2, 4), sub, module, PLAIN, TrainingSettings(), device=cpu)
    (gradient,) = weights.gradients
    gradient[0, 0] = 3.0
    gradient[1, 0] = torch.nan  # the rest may be gaps, which nothing writes to
    clip([gradient], 1.0, rows=True)
    assert gradient[1].isnan().all()
    assert gradient[0].tolist() == pytest.approx([1.0, 0, 0, 0], abs=1e-6)
    reset(weights)
    assert not gradient.any()


def test_a_model_that_is_stacked_with_its_channels_first_only_is_stacked_so(monkeypatch):
    settings = read_settings("quickstart", ["model.options={widths=[4,8]}"]).main
    normed = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.GroupNorm(1, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    )
    groups, batches = (Experiment(settings, model=model).trainer for model in (normed, None))
    assert stack_trial.try_stack(groups) is None
    assert "cannot be stacked" in str(stack_trial.try_stack_as(groups, channels_last=True))
    assert stack_trial.try_stack_as(batches, channels_last=True) is None
    on_gpu = replace(groups, device=torch.device("cuda"))
    on_gpu.takes_channels_last = True
    # There is no GPU here to try it on.
    monkeypatch.setattr(stack_trial, "try_stack_as", lambda _, channels_last: "no" if channels_last else None)
    assert stack_trial.try_stack(on_gpu) is None
    assert not stack_trial.stacks_channels_last(on_gpu)
