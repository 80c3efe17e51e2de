"""Embeddings with sparse gradients are refused before anything is trained, with their names."""

import pytest
import torch
from torch import nn

from fedwidth.data import from_tensors
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from small_runs import small

WORDS, LABELS = torch.arange(360).view(60, 6) % 50, torch.arange(60) % 3


def model(kind=nn.Embedding, *, sparse=False):
    flat = [nn.Flatten(), nn.Linear(48, 3)] if kind is nn.Embedding else [nn.Linear(8, 3)]
    return nn.Sequential(kind(50, 8, sparse=sparse), *flat)


def run(whole, *changes, **more):
    plain = ("rounds=1", "devices.capacities='1:1 1/2:1'", "data.partition=iid", "data.partition_options={}")
    settings = small(*plain, *changes)
    return Experiment(settings, model=whole, data=from_tensors(WORDS, LABELS, WORDS, LABELS), **more).run()


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_they_are_refused_with_their_names(kind):
    with pytest.raises(OptionError, match=rf"^the {kind.__name__} '0' has sparse gradients.*sparse=False$"):
        run(model(kind, sparse=True))


def test_those_of_further_models_are_refused():
    public = from_tensors(WORDS, LABELS, WORDS, LABELS)
    with pytest.raises(OptionError, match="'0' of 'Sequential' has sparse gradients"):
        run(model(), "method.name=feddf", public=public, models={0.5: model(sparse=True)})


def test_what_is_not_trained_has_no_gradients():
    frozen = model(sparse=True)
    frozen[0].weight.requires_grad_(False)
    assert run(frozen).summary["global_accuracy"] >= 0
