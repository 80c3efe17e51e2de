"""Metrics and losses against sums by hand and scikit-learn's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as known
from torch.nn import functional

from fedwidth.data import IGNORE
from fedwidth.objectives import OBJECTIVES
from fedwidth.objectives.catalogue import METRICS, metric_of
from fedwidth.objectives.metric import ACCURACY, Measure

RANDOM = torch.Generator().manual_seed(3)


def value(metric, output, targets):
    return float(metric.of(metric.counts(output, targets).sum(0)))


def of(objective, name):
    return next(metric for metric in METRICS[objective] if metric.name == name)


def test_accuracy_counts_targets_that_count():
    """Three words of each of two samples; four count, of which three are right."""
    output = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
    targets = torch.tensor([[0, 1, IGNORE], [0, 1, IGNORE]])
    counts = of("classification", "accuracy").counts(output, targets)
    assert counts.tolist() == [[2, 2], [1, 2]]
    assert value(of("classification", "accuracy"), output, targets) == 0.75


def test_labels_on_several_axes_are_counted_by_sample():
    output = torch.randn(2, 4, 5, 3, generator=RANDOM)
    targets = torch.randint(0, 3, (2, 4, 5), generator=RANDOM)
    hits = (output.argmax(-1) == targets).sum((1, 2))
    assert of("classification", "accuracy").counts(output, targets).tolist() == [[int(n), 20] for n in hits]


@pytest.mark.parametrize("name", ["mse", "rmse", "mae", "r2"])
def test_metrics_of_numbers(name):
    output, targets = torch.randn(40, 1, generator=RANDOM), torch.randn(40, generator=RANDOM)
    targets[3] = math.nan  # not counted
    there = ~targets.isnan()
    right = {
        "mse": known.mean_squared_error,
        "rmse": lambda y, x: known.mean_squared_error(y, x) ** 0.5,
        "mae": known.mean_absolute_error,
        "r2": known.r2_score,
    }[name]
    expected = right(targets[there].numpy(), output[there, 0].numpy())
    assert value(of("regression", name), output, targets) == pytest.approx(expected, rel=1e-6)
    assert of("regression", name).measure.higher_is_better == (name == "r2")


def test_each_column_of_targets_has_its_own_mean():
    """By hand: the first column is right but for an error of 1 (1 - 1/2), the second is off by 2 twice (1 - 8/8)."""
    targets = torch.tensor([[1.0, 100.0], [2.0, 102.0], [3.0, 104.0]])
    output = torch.tensor([[1.0, 102.0], [2.0, 102.0], [4.0, 102.0]])
    assert value(of("regression", "r2"), output, targets) == pytest.approx((0.5 + 0.0) / 2)


@pytest.mark.parametrize("shape", [(50, 2), (50, 4)])
def test_several_columns_count_as_they_do_in_scikit_learn(shape):
    """Noise around different means is no knowledge, in one pass and summed over clients."""
    metric, targets = of("regression", "r2"), torch.randn(shape, generator=RANDOM)
    targets = targets + 20 * torch.arange(targets[0].numel()).view(shape[1:])
    output = targets + torch.randn(shape, generator=RANDOM)
    expected = known.r2_score(targets.flatten(1).numpy(), output.flatten(1).numpy())
    counts = metric.counts(output, targets)
    by_client = torch.stack([counts[:13].sum(0), counts[13:].sum(0)])
    assert value(metric, output, targets) == pytest.approx(expected, rel=1e-5)
    assert float(metric.of(by_client.sum(0))) == pytest.approx(expected, rel=1e-5)
    assert value(metric, targets.mean(0).expand(shape), targets) == pytest.approx(0, abs=1e-6)


def test_targets_of_more_dimensions_have_one_mean_and_few_numbers():
    """Of pixels each would be a column, four numbers of which every test sample would keep."""
    metric, targets = of("regression", "r2"), torch.randn(50, 1, 8, 8, generator=RANDOM)
    output = targets + torch.randn(targets.shape, generator=RANDOM)
    assert metric.counts(output, targets).shape == (50, 5)
    expected = known.r2_score(targets.flatten().double().numpy(), output.flatten().double().numpy())
    assert value(metric, output, targets) == pytest.approx(expected, abs=1e-6)


def test_targets_that_lie_far_from_zero_still_differ():
    """Seconds since 1970, within some hours: the sums of their squares keep eleven digits and more."""
    targets = 1.7e9 + 5e3 * torch.randn(50_000, generator=RANDOM).double()
    output = targets + 1.5e3 * torch.randn(50_000, generator=RANDOM).double()
    expected = known.r2_score(targets.numpy(), output.numpy())
    assert value(of("regression", "r2"), output, targets) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("level", [0.0, 0.1, -3e7])
@pytest.mark.parametrize("off", [0.0, 0.5])
def test_a_column_whose_targets_are_equal_counts_as_in_scikit_learn(level, off):
    """1 where it is met and else 0, though the sums of its squares are rounded."""
    targets = torch.stack([torch.randn(1000, generator=RANDOM), torch.full((1000,), level)], dim=1)
    output = targets + torch.tensor([0.1, off]) * (1 + abs(level))
    expected = known.r2_score(targets.double().numpy(), output.double().numpy())
    assert value(of("regression", "r2"), output, targets) == pytest.approx(expected, rel=1e-5)
    assert value(of("regression", "r2"), output[:, 1], targets[:, 1]) == float(off == 0)


def test_a_column_without_targets_that_count_is_left_out():
    targets = torch.randn(30, 2, generator=RANDOM)
    output, alone = targets + torch.randn(30, 2, generator=RANDOM), targets[:, 0].clone()
    targets[:, 1] = math.nan
    assert value(of("regression", "r2"), output, targets) == value(of("regression", "r2"), output[:, 0], alone)


@pytest.mark.parametrize("samples", [2, 7, 100, 2000])
def test_one_target_has_the_value_it_always_had(samples):
    """To the last bit."""
    targets, output = torch.randn(2, samples, generator=RANDOM)
    true = targets.double()
    sums = torch.stack([(output - targets).double().square(), true, true**2, torch.ones(samples).bool()], dim=1).sum(0)
    error, total, square, number = sums
    assert value(of("regression", "r2"), output, targets) == float(1 - error / (square - total**2 / number))


def test_metrics_of_labels():
    output, targets = torch.randn(30, 4, generator=RANDOM), torch.randint(0, 2, (30, 4), generator=RANDOM)
    found = (output > 0).numpy()
    expected = known.f1_score(targets.numpy(), found, average="micro")
    assert value(of("multi-label", "f1"), output, targets) == pytest.approx(expected)
    expected = 1 - known.hamming_loss(targets.numpy(), found)
    assert value(of("multi-label", "label_accuracy"), output, targets) == pytest.approx(expected)


def test_metrics_of_pixels():
    output, targets = torch.randn(6, 3, 5, 5, generator=RANDOM), torch.randint(0, 3, (6, 5, 5), generator=RANDOM)
    targets[0, 0] = IGNORE
    there = targets != IGNORE
    true, found = targets[there].numpy(), output.argmax(1)[there].numpy()
    expected = known.jaccard_score(true, found, average="macro")
    assert value(of("segmentation", "mean_iou"), output, targets) == pytest.approx(expected)
    expected = known.accuracy_score(true, found)
    assert value(of("segmentation", "pixel_accuracy"), output, targets) == pytest.approx(expected)


def test_a_class_that_does_not_occur_is_left_out_of_the_mean():
    """Class 1 is neither there nor predicted; 0 has 3 of 4 right, 2 none: (3/4 + 0) / 2."""
    output = functional.one_hot(torch.tensor([[0, 0], [0, 0]]), 3).movedim(-1, 0)[None].float()
    targets = torch.tensor([[[0, 0], [0, 2]]])
    assert value(of("segmentation", "mean_iou"), output, targets) == 0.375


def test_sums_of_parts_are_those_of_the_whole():
    """What lets one pass give the metric of all samples, of each client and of runs together."""
    cases = {
        "classification": (torch.randn(20, 3, generator=RANDOM), torch.randint(0, 3, (20,), generator=RANDOM)),
        "regression": (torch.randn(20, 2, generator=RANDOM), torch.randn(20, 2, generator=RANDOM)),
        "multi-label": (torch.randn(20, 2, generator=RANDOM), torch.randint(0, 2, (20, 2), generator=RANDOM)),
        "segmentation": (torch.randn(20, 3, 4, generator=RANDOM), torch.randint(0, 3, (20, 4), generator=RANDOM)),
    }
    for name, (output, targets) in cases.items():
        for metric in METRICS[name]:
            counts = metric.counts(output, targets)
            assert counts.shape[0] == 20
            for number in range(20):
                alone = metric.counts(output[number : number + 1], targets[number : number + 1])
                assert torch.allclose(alone[0].double(), counts[number].double())
            two = torch.stack([counts[:7].sum(0), counts[7:].sum(0)])
            assert metric.of(two).shape == (2,)
            assert float(metric.of(two.sum(0))) == pytest.approx(value(metric, output, targets))
            assert math.isnan(float(metric.of(torch.zeros_like(counts[0]))))


def test_losses_are_pytorchs_own_where_all_targets_count():
    x, y = torch.randn(7, 3, generator=RANDOM), torch.randn(7, 3, generator=RANDOM)
    assert float(OBJECTIVES["regression"].loss(x, y)) == pytest.approx(float(functional.mse_loss(x, y)))
    labels = torch.randint(0, 2, (7, 3), generator=RANDOM)
    expected = functional.binary_cross_entropy_with_logits(x, labels.float())
    assert float(OBJECTIVES["multi-label"].loss(x, labels)) == pytest.approx(float(expected))


@pytest.mark.parametrize("name", ["classification", "regression", "multi-label", "segmentation"])
def test_samples_marked_as_missing_change_no_loss_and_have_no_gradient(name):
    """Two clients in a stack, of whom one lacks its last sample."""
    shapes = {
        "classification": ((2, 3, 4), torch.randint(0, 4, (2, 3), generator=RANDOM)),
        "regression": ((2, 3, 2), torch.randn(2, 3, 2, generator=RANDOM)),
        "multi-label": ((2, 3, 2), torch.randint(0, 2, (2, 3, 2), generator=RANDOM)),
        "segmentation": ((2, 3, 4, 5, 5), torch.randint(0, 4, (2, 3, 5, 5), generator=RANDOM)),
    }
    shape, targets = shapes[name]
    objective = OBJECTIVES[name]
    output = torch.randn(shape, generator=RANDOM, requires_grad=True)
    marked = objective.without(targets, torch.tensor([[False, False, False], [False, False, True]]))
    whole = objective.loss(output[0], targets[0]).item()
    assert objective.loss(output[0], marked[0]).item() == pytest.approx(whole)
    loss = objective.loss(output[1], marked[1])
    assert loss.item() == pytest.approx(objective.loss(output[1, :2], targets[1, :2]).item())
    loss.backward()
    assert not output.grad[1, 2].any()
    assert output.grad[1, :2].any()
    mean = objective.mean(torch.ones(3) if name == "classification" else torch.ones_like(marked[1] * 1.0), marked[1])
    assert float(mean) == 1.0


def test_evaluation_sums_losses_of_targets_that_count():
    output, targets = torch.randn(4, 2, generator=RANDOM), torch.randn(4, 2, generator=RANDOM)
    targets[0, 0] = math.nan
    objective = OBJECTIVES["regression"]
    assert int(objective.number(targets)) == 7
    error = (output - targets).square().nansum()
    assert float(objective.total_loss(output, targets)) == pytest.approx(float(error), rel=1e-6)
    both = objective.total_losses(torch.stack([output, output + 1]), targets)
    assert both.tolist() == pytest.approx([float(error), float((output + 1 - targets).square().nansum())], rel=1e-6)


def test_a_metric_of_ones_own():
    def hit(output, targets):
        """Near enough."""
        return (output[:, 0] - targets).abs() < 0.5

    metric = metric_of(hit, higher_is_better=True)
    assert (metric.name, metric.measure.title) == ("hit", "Near enough")
    assert value(metric, torch.tensor([[1.0], [2.0]]), torch.tensor([1.1, 9.0])) == 0.5


def test_what_a_line_says_of_its_metric():
    mse = Measure("mse", "mean squared error", higher_is_better=False)
    assert Measure.of({"metric": mse.facts()}) == mse
    assert Measure.of({"global_accuracy": 0.5}) == ACCURACY
    assert (mse.sign, ACCURACY.sign, mse.text(0.12345), ACCURACY.text(0.12345)) == (-1, 1, "0.1235", "12.35 %")
    assert np.sign(mse.sign) == -1
