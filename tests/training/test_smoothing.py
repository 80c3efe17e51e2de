"""Label smoothing: the term by hand, PyTorch's where nothing is masked, with every kind of method and engine."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedwidth.config.read import read_settings
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from fedwidth.objectives import CLASSIFICATION
from fedwidth.training.loss import Pass
from small_runs import same, small

SMOOTHED = "training.smoothing=0.5"


def loss(logits, targets, *, smoothing, lacks=()):
    """The loss of a client that answers with these logits and has no samples of some classes."""
    absent = torch.zeros(logits.shape[-1], dtype=torch.bool)
    absent[list(lacks)] = True
    module = torch.nn.Identity()
    client = Pass(module, absent, "zero", {}, 1.0, CLASSIFICATION, module, smoothing=smoothing)
    return client.loss(logits, targets)


def test_where_nothing_is_masked_it_is_pytorchs_label_smoothing():
    torch.manual_seed(0)
    logits, targets = torch.randn(6, 5), torch.arange(6) % 5
    smoothed = cross_entropy(logits, targets, label_smoothing=0.5 / 1.5)
    entropy = torch.log(torch.tensor(5.0))
    torch.testing.assert_close(loss(logits, targets, smoothing=0.5), 1.5 * smoothed - 0.5 * entropy)


def test_classes_that_the_plain_loss_masks_are_pulled_too():
    logits = torch.tensor([[2.0, 0.0, 1.0]], requires_grad=True)
    loss(logits, torch.tensor([0]), smoothing=0.5, lacks=[2]).backward()
    own = logits.detach().softmax(-1)[0]
    # The masked class has no gradient by the label: what is left is its probability less a third, times the weight.
    assert logits.grad[0, 2].item() == pytest.approx(0.5 * (own[2].item() - 1 / 3))


def test_words_that_do_not_count_are_not_pulled():
    logits = torch.tensor([[[0.0, 0.0], [3.0, 1.0]]])
    ignored = int(CLASSIFICATION.ignored)
    both = loss(logits, torch.tensor([[0, 1]]), smoothing=1.0) - loss(logits, torch.tensor([[0, 1]]), smoothing=0.0)
    one = loss(logits, torch.tensor([[0, ignored]]), smoothing=1.0) - loss(
        logits, torch.tensor([[0, ignored]]), smoothing=0.0
    )
    assert one.item() == pytest.approx(0), "equal logits are alike already"
    assert both.item() > 0.1


@pytest.mark.parametrize(
    "method",
    [
        ["method.name=heterofl"],
        ["method.name=scaffold"],
        ["method.name=fjord"],
        ["method.name=fedrolex", "local.name=fedprox"],
    ],
    ids=["plain", "corrected", "a loss of its own", "a term of its own"],
)
def test_it_goes_with_any_method_and_at_zero_changes_nothing(method):
    plain = Experiment(small(*method)).run().server.state
    silent = Experiment(small(*method, "training.smoothing=0")).run().server.state
    smoothed = Experiment(small(*method, SMOOTHED)).run().server.state
    assert same(plain, silent)
    assert not same(plain, smoothed)


def test_stacked_clients_and_worker_processes_take_the_same_steps():
    alone = Experiment(small("method.name=heterofl", SMOOTHED, "engine=serial")).run().server.state
    shared = Experiment(small("method.name=heterofl", SMOOTHED, "engine=processes", "workers=2")).run().server.state
    assert same(alone, shared)
    stacked = Experiment(small("method.name=heterofl", SMOOTHED, "engine=vectorised")).run().server.state
    for name in alone:
        torch.testing.assert_close(stacked[name], alone[name], atol=1e-5, rtol=0)


def test_it_is_the_local_rule_of_recorded_trials():
    setting = Experiment(small("method.name=heterofl", SMOOTHED)).run().server.state
    rule = ("local.name=reproduction.smoothing:METHOD", "local.options.weight=0.5")
    recorded = Experiment(small("method.name=heterofl", *rule)).run().server.state
    for name in setting:
        torch.testing.assert_close(setting[name], recorded[name], atol=1e-5, rtol=0)


def test_answers_without_classes_are_not_smoothed():
    with pytest.raises(
        OptionError, match=r"needs training\.smoothing = 0\.0, not 0\.5: label smoothing is for outputs whose last axis"
    ):
        read_settings("quickstart", ["objective.name=regression", SMOOTHED])
    with pytest.raises(OptionError, match=r"training\.smoothing must be"):
        read_settings("quickstart", ["training.smoothing=-1"])
    with pytest.raises(OptionError, match=r"training\.smoothing must be a number of at least 0 and below 1000"):
        read_settings("quickstart", ["training.smoothing=1e39"])
