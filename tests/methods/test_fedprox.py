"""FedProx: the worked step, and that it is FedAvg where nothing holds clients back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedwidth.experiment import Experiment
from fedwidth.methods import method
from fedwidth.settings import TrainingSettings
from fedwidth.training.rule import Rule
from fedwidth.training.step import take_step
from fedwidth.training.weights import Weights
from small_runs import same, small

PLAIN = TrainingSettings(optimiser="sgd", momentum=0.0, weight_decay=0.0, clip=0.0)


def layouts(start, w, g):
    """The same two numbers as two parameters, as one vector, and as the second row of a stack."""
    two = [[torch.tensor([x]) for x in values] for values in (start, w, g)]
    yield two, 0.5, lambda values: [float(v) for v in values]
    yield [[torch.tensor(values)] for values in (start, w, g)], torch.tensor(0.5), lambda v: v[0].tolist()
    rows = [[torch.tensor([[9.0, 9.0], values])] for values in (start, w, g)]
    yield rows, torch.tensor([[0.5], [0.5]]), lambda v: v[0][1].tolist()


def test_a_step_worked_by_hand():
    # w_t = (1, 2), w = (1.5, 1), gradient (0.2, -0.4), mu = 0.1: direction (0.2 + 0.1 * 0.5, -0.4 - 0.1 * 1), which is
    # (0.25, -0.5); with rate 0.5 w = (1.375, 1.25).
    rule = Rule.of(method("fedprox", mu=0.1))
    for (start, w, g), rate, read in layouts([1.0, 2.0], [1.5, 1.0], [0.2, -0.4]):
        weights = Weights(w, g, start=start, rate=rate, rows=isinstance(rate, torch.Tensor) and rate.dim() == 2)
        take_step(weights, rule, PLAIN, 1.0)
        assert read(weights.values) == pytest.approx([1.375, 1.25])


def test_the_term_is_the_gradient_of_the_penalty():
    # mu/2 |w - w_t|^2 = 0.05 (0.25 + 1) = 0.0625, gradient (0.05, -0.1).
    start, w = torch.tensor([1.0, 2.0]), torch.tensor([1.5, 1.0], requires_grad=True)
    penalty = 0.1 / 2 * (w - start).square().sum()
    penalty.backward()
    assert penalty.item() == pytest.approx(0.0625)
    weights = Weights([w.detach().clone()], [torch.zeros(2)], start=[start], rate=torch.tensor(1.0))
    take_step(weights, Rule.of(method("fedprox", mu=0.1)), PLAIN, 1.0)
    assert (w.detach() - weights.values[0]).tolist() == pytest.approx(w.grad.tolist())


def test_the_gradient_is_clipped_with_its_term():
    # direction (0.25, -0.5) has norm 0.559; clipped to 0.1 it is (0.0447, -0.0894): w = (1.5 - 0.0224, 1 + 0.0447).
    rule = Rule.of(method("fedprox", mu=0.1))
    for (start, w, g), rate, read in layouts([1.0, 2.0], [1.5, 1.0], [0.2, -0.4]):
        weights = Weights(w, g, start=start, rate=rate, rows=isinstance(rate, torch.Tensor) and rate.dim() == 2)
        take_step(weights, rule, replace(PLAIN, clip=0.1), 1.0)
        assert read(weights.values) == pytest.approx([1.5 - 0.05 / 5**0.5, 1 + 0.1 / 5**0.5], abs=1e-5)


@pytest.mark.parametrize("engine", ["serial", "cuda", "vectorised"])
def test_without_mu_it_is_fedavg_bit_for_bit(engine):
    runs = [
        Experiment(small(f"method.name={name}", f"engine={engine}", *more)).run().server.state
        for name, more in [("fedavg", []), ("fedprox", ["method.options.mu=0"]), ("fedprox", [])]
    ]
    assert same(dict(runs[0]), dict(runs[1]))
    assert not same(dict(runs[0]), dict(runs[2])), "the term does something"


def test_clients_end_nearer_to_what_they_were_sent_the_larger_mu():
    ways = []
    for mu in (0.0, 0.1, 1.0):
        run = Experiment(small("method.name=fedprox", f"method.options.mu={mu}", "rounds=1", "training.epochs=5"))
        state = run.run().server.state
        ways.append(sum(float((state[n] - t).square().sum()) for n, t in run.first_state.items()))
    assert ways[0] > ways[1] > ways[2] > 0


def test_buffers_and_frozen_parameters_are_not_held_back():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(4 * 36, 10)
    )
    model[3].bias.requires_grad_(False)
    for engine in ("serial", "cuda"):
        runs = [
            Experiment(
                small("rounds=1", f"engine={engine}", f"method.name={name}", "devices.capacities=a1", *more),
                model=model,
            )
            for name, more in [("fedavg", []), ("fedprox", ["method.options.mu=1000.0", "training.lr=1e-9"])]
        ]
        plain, held = (run.run().server.state for run in runs)
        # With next to no learning, statistics of the data are all that changes: a term on them would pull them back.
        assert not torch.equal(held["1.running_mean"], runs[1].first_state["1.running_mean"])
        assert torch.equal(held["3.bias"], runs[1].first_state["3.bias"])
        assert not torch.equal(plain["0.weight"], runs[0].first_state["0.weight"])
