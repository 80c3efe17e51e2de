"""FedBE: its distributions and its sharpening, by hand."""

import numpy as np
import pytest
import torch

from fedwidth.experiment import Experiment
from fedwidth.methods.fedbe import dirichlet_sample, paper_sample, published_sample, sharpen
from small_runs import same, small

MODELS, START = torch.tensor([[3.0, 4.0], [4.0, 3.0]]), torch.zeros(2)
NOISE, EQUAL = torch.tensor([1.0, -1.0]), np.array([0.5, 0.5])


def test_the_papers_gaussian():
    """mu = (3.5, 3.5), sigma = 0.5: sample (4, 3)."""
    assert paper_sample(MODELS, EQUAL, START, NOISE).tolist() == [4.0, 3.0]


def test_the_published_gaussian():
    """Unit steps (0.6, 0.8) and (0.8, 0.6): mean 0.7, variance 0.01, length 5: sample (3.55, 3.45)."""
    assert published_sample(MODELS, EQUAL, START, NOISE).tolist() == pytest.approx([3.55, 3.45])


def test_the_dirichlet_distribution():
    """gamma = (0.25, 0.75), clients of one size: (3.75, 3.25); with three times the samples both count alike."""
    gamma = np.array([0.25, 0.75])
    assert dirichlet_sample(MODELS, EQUAL, gamma).tolist() == [3.75, 3.25]
    assert dirichlet_sample(MODELS, np.array([0.75, 0.25]), gamma).tolist() == [3.5, 3.5]


def test_a_tensor_that_did_not_move_stays():
    still = torch.ones(2, 3)
    assert published_sample(still, EQUAL, torch.ones(3), torch.ones(3)).tolist() == [1.0, 1.0, 1.0]


def test_sharpening():
    """(0.5, 0.35, 0.15) at 0.5: (0.632911, 0.310127, 0.056962)."""
    found = sharpen(torch.tensor([0.5, 0.35, 0.15]), 0.5)
    assert found.tolist() == pytest.approx([0.632911, 0.310127, 0.056962], abs=1e-6)


@pytest.mark.parametrize("distribution", ["gaussian", "published", "dirichlet"])
def test_a_run_repeats_bit_for_bit(distribution):
    options = f"method.options={{steps=3, samples=2, batch_size=8, distribution='{distribution}'}}"
    runs = [Experiment(small("method.name=fedbe", options, "rounds=2")).run() for _ in range(2)]
    assert same(runs[0].server.state, runs[1].server.state)
