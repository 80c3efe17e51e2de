"""Spectral norms against the largest singular values that PyTorch's linear algebra finds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fedwidth
from fedwidth import Index, narrow, trace
from fedwidth.data import from_tensors
from fedwidth.experiment import Experiment
from fedwidth.models import collect_statistics
from fedwidth.models.spectral_norm import update_spectral_norms
from fedwidth.run.lockstep.evaluation import LockstepEvaluation
from small_runs import small

KINDS = {"parametrized": nn.utils.parametrizations.spectral_norm, "hook": nn.utils.spectral_norm}


class Net(nn.Module):
    """Two layers with spectral norms, one of them over a weight with its outputs second."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.middle = KINDS[kind](nn.Linear(20, 48)), KINDS[kind](nn.ConvTranspose1d(48, 32, 1), dim=1)
        self.last = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = torch.relu(self.first(x))
        return self.last(torch.relu(self.middle(x.unsqueeze(-1))).squeeze(-1))


def largest(model: nn.Module) -> list[float]:
    """The largest singular values of the weights that the two layers compute with in evaluation."""
    model.eval()(torch.randn(2, 20))  # the older kind computes its weight in the forward pass
    weights = (model.first.weight, model.middle.weight.transpose(0, 1).flatten(1))
    return [torch.linalg.matrix_norm(weight, 2).item() for weight in weights]


def samples(number: int, seed: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(number, 20, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()


@pytest.mark.parametrize("kind", KINDS)
def test_a_narrow_model_has_the_singular_values_of_its_own_weights(kind: str) -> None:
    torch.manual_seed(0)
    model = Net(kind).eval()
    plan = trace(model, torch.randn(2, 20))
    some = {name: range(group.size // 4) for name, group in plan.groups.items()}
    made = narrow(model, plan, Index.of_units(plan, some))
    assert max(abs(value - 1) for value in largest(made)) > 0.1
    made.train()
    collect_statistics(made, [])
    assert largest(made) == pytest.approx([1, 1], abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_modes_and_weights_stay_as_they_were(kind: str) -> None:
    model = Net(kind).eval()
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    update_spectral_norms(model)
    assert not any(module.training for module in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.named_parameters())
    vectors = {name: tensor.clone() for name, tensor in model.named_buffers()}
    model(torch.randn(2, 20))
    assert all(torch.equal(tensor, vectors[name]) for name, tensor in model.named_buffers())


@pytest.mark.parametrize("norm", ["static", "batch"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_measures_and_keeps_what_spectral_norm_promises(tmp_path: Path, kind: str, norm: str) -> None:
    torch.manual_seed(0)
    data = from_tensors(*samples(300, 1), *samples(200, 2))
    settings = small(
        "method.name=heterofl", "devices.capacities='1:1 1/4:1'", "training.lr=0.1", "training.batch_size=10",
        "data.partition=iid", "data.partition_options={}", "evaluation.capacities=[1,0.25]", f"evaluation.norm={norm}",
    )  # fmt: skip
    experiment = Experiment(settings, model=Net(kind), data=data)
    assert LockstepEvaluation([experiment]).packed is None  # stacked states would keep the vectors they came with
    result = experiment.run(tmp_path / "run")
    assert largest(result.model) == pytest.approx([1, 1], abs=1e-3)
    for capacity in (1, 0.25):
        loaded = fedwidth.load(tmp_path / "run", model=Net(kind), capacity=capacity)
        assert largest(loaded) == pytest.approx([1, 1], abs=1e-3)
        right = (loaded(data.test.inputs).argmax(1) == data.test.targets).double().mean().item()
        assert result.summary["capacity_accuracy"][f"{capacity}"] == pytest.approx(right)
