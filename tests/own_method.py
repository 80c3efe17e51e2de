"""A method of a user's own that uses every part a method may have; worker processes import it from here."""

from __future__ import annotations

import copy
import types
from dataclasses import dataclass

import torch
from torch import nn

from fedwidth.core.cost import Cost
from fedwidth.core.index import Index
from fedwidth.core.selection import rolling
from fedwidth.methods import Local, Method, Option, named, per_group, under


def units(size, kept, at):
    """A window that the server's memory moves on, so that choosing has to wait for the round before."""
    return rolling(size, kept, int(at.memory["rounds"]) + at.number)


def begin(beginning):
    """The first state, halved."""
    return {n: t * 0.5 if t.is_floating_point() else t for n, t in beginning.state.items()}


def remember_nothing(beginning):
    trained = {n: torch.zeros_like(t) for n, t in beginning.state.items() if n in beginning.plan.parameters}
    return named("mean", trained) | {"rounds": torch.tensor(0)}


def sends(memory, own, at):
    mean, before = under(memory, "mean"), under(own, "last")
    last = {n: before.get(n, torch.zeros_like(t)) for n, t in mean.items()}
    return {"mean": mean, "last": last, "pull": 0.1 / (1 + at.round) * (1 + at.client)}


def gradient(g, w, start, sent, at):
    return g + sent["pull"] * (w - start) + at.options["strength"] * (sent["mean"] - 0.5 * sent["last"])


def loss(client, inputs, targets):
    """Cross entropy and a little of the logits' size."""
    logits = client.logits(inputs)
    return client.loss(logits, targets) + 0.01 * client.mean(logits.square().mean(-1), targets)


def reports(w, start, sent, at):
    way = (start - w) / (at.steps * at.rate)
    return {"way": way + 0.1 * sent["full_gradient"], "last": way}


def close(closing):
    """A step of 0.9 towards the average."""
    return {
        n: torch.lerp(closing.state[n], t, 0.9) if t.is_floating_point() else t for n, t in closing.average().items()
    }


def advance(closing):
    """The mean of what clients reported, and how many rounds there were."""
    way, before = closing.reported("way"), under(closing.memory, "mean")
    mean = {n: 0.5 * t + way.get(n, 0.0) / closing.clients for n, t in before.items()}
    return named("mean", mean) | {"rounds": closing.memory["rounds"] + 1}


METHOD = Method(
    name="everything",
    title="Everything",
    paper="a test",
    equation="-",
    choose=per_group(units),
    options={"strength": Option(0.05, "a number", lambda v: isinstance(v, float), "of the memory")},
    reads=("memory",),
    local=Local(
        gradient=gradient,
        loss=loss,
        steady=True,
        sends=sends,
        reports=reports,
        adds=("way",),
        own=("last",),
        full_gradient=lambda options: True,
    ),
    start=begin,
    init=remember_nothing,
    advance=advance,
    close=close,
)


def close_median(closing):
    """The median of single updates, element by element, of clients that all hold the same."""
    assert len(closing.sums) == len(closing.tasks)
    new = dict(closing.state)
    for name in new:
        if name in closing.plan.parameters:
            new[name] = torch.stack([one.mean[name] for one in closing.sums]).median(0).values
    return new


MEDIAN = Method(
    name="median",
    title="Median",
    paper="a test",
    equation="-",
    choose=lambda plan, counts, at: Index.whole(plan),
    shared=lambda _: True,
    collect="updates",
    close=close_median,
)


@dataclass(frozen=True)
class Factors:
    """A part that is no slice: the first hidden layer of an MLP as a product of two matrices of some rank."""

    rank: int

    @property
    def key(self):
        return f"rank {self.rank}"

    @property
    def size(self):
        return self.rank

    @property
    def number_of_units(self):
        return self.rank

    @property
    def is_whole(self):
        return False

    def cut(self, state, plan):
        rows, values, columns = torch.linalg.svd(state[LAYER], full_matrices=False)
        root = values[: self.rank].sqrt()
        down, up = root[:, None] * columns[: self.rank], rows[:, : self.rank] * root
        rest = {name: tensor.clone() for name, tensor in state.items() if name != LAYER}
        return {**rest, "hidden.1.0.weight": down, "hidden.1.1.weight": up}

    def module(self, model, plan):
        small = copy.deepcopy(model)
        old = small.hidden[1]
        down = nn.Linear(old.in_features, self.rank, bias=False)
        up = nn.Linear(self.rank, old.out_features, bias=False)
        small.hidden[1] = nn.Sequential(down, up)
        # The bias keeps its name: the layer that had it is gone.
        small.hidden[1].register_parameter("bias", nn.Parameter(torch.zeros(old.out_features)))
        small.hidden[1].forward = types.MethodType(lambda self, x: self[1](self[0](x)) + self.bias, small.hidden[1])
        return small

    def accumulator(self):
        return Products(self)

    def cost(self, model, plan, example, *, capacity):
        return Cost(capacity, 1, 4, 0, 1, 1, 1, 0.5)


class Products:
    """The mean of clients' products, not of their factors."""

    def __init__(self, part):
        self.part, self.mean, self.clients, self.reports = part, {}, 0, {}

    def add(self, update, *, copy=True):
        whole = {
            n: t.detach().clone() for n, t in update.sub.items() if not n.startswith("hidden.1.") or n.endswith("bias")
        }
        whole[LAYER] = update.sub["hidden.1.1.weight"] @ update.sub["hidden.1.0.weight"]
        self.clients += 1
        for name, tensor in whole.items():
            before = self.mean.get(name, torch.zeros_like(tensor))
            self.mean[name] = before + (tensor - before) / self.clients


LAYER = "hidden.1.weight"

FACTORS = Method(
    name="factors",
    title="Factors",
    paper="a test",
    equation="-",
    choose=lambda plan, counts, at: Factors(max(1, int(8 * at.capacity))),
    slices=False,
    close=lambda closing: {
        name: sum(one.mean[name] * one.clients for one in closing.sums) / len(closing.tasks) for name in closing.state
    },
)
