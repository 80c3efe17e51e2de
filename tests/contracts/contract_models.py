"""Small models for the contracts: the product's own, and the whole zoo of the tracer's tests."""

from functools import cache

import pytest
import torch
from torch import nn

import fedwidth
import zoo
from fedwidth.models import build, example_inputs


class Encoder(nn.Module):
    """Embedding, one standard transformer layer, tied decoder."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0, batch_first=True)
        self.decoder = nn.Linear(32, 20)
        self.decoder.weight = self.words.weight

    def forward(self, tokens):
        return self.decoder(self.layer(self.words(tokens)))


class Recurrent(nn.Module):
    """An LSTM classifier."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(5, 16, batch_first=True)
        self.out = nn.Linear(16, 3)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


def _named(name, shape=None, **options):
    facts = {"data_shape": shape} if shape else {}
    return lambda: (build(name, seed=1, **facts, **options), example_inputs(name, **facts)[0])


FACTORIES = {
    "mlp": _named("mlp", (1, 8, 8), hidden=[32, 16]),
    "cnn": _named("cnn", (1, 8, 8), widths=[16, 32]),
    "preresnet18": _named("preresnet18", (3, 16, 16), widths=[16, 16, 32, 32]),
    "transformer": _named("transformer", vocabulary=30, embedding=32, heads=2, hidden=32, layers=1, dropout=0.0),
    "encoder": lambda: (Encoder(), torch.arange(12).reshape(2, 6)),
    "lstm": lambda: (Recurrent(), torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0))),
}
MODELS = [*FACTORIES, *(f"zoo {name}" for name in zoo.EVERY)]


@cache
def traced(name):
    if name.startswith("zoo "):
        case = zoo.EVERY[name.removeprefix("zoo ")]
        if name.removeprefix("zoo ") in zoo.HUGGING_FACE:
            pytest.importorskip("transformers")
        model, inputs = zoo.build(case.full), zoo.doubled(case.inputs())
        return model, fedwidth.trace(model, inputs, output=case.output), inputs
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, inputs = FACTORIES[name]()
    return model.eval(), fedwidth.trace(model, inputs), inputs
