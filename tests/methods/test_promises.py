"""What methods of one's own promise is tried out before the first round; what the package ships is not asked."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import fedwidth
import own_method
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from fedwidth.methods import Local, Method, fedavg, method, methods, named, per_group, under
from fedwidth.methods.lookup.reference import is_shipped
from fedwidth.run import start
from fedwidth.run.lockstep import run_in_lockstep
from small_runs import small


def chooses(units, **more):
    return Method("mine", "Mine", "-", "-", choose=per_group(units), **more).with_options()


def trains(**functions):
    return Method("mine", "Mine", "-", "-", choose=fedavg.choose, local=Local(**functions)).with_options()


def by_place(size, kept, at):
    return torch.arange(kept) + (at.client % 2 if kept < size else 0)


def in_place(size, kept, at):
    return at.state["hidden.1.bias"].data.abs_().topk(kept).indices.sort().values


def counting(size, kept, at):
    under(at.memory, "asked")["rounds"].add_(1)
    return torch.arange(kept)


def from_the_end(size, kept, at):
    return torch.arange(size - kept, size) if at.capacity < 0.5 else torch.arange(kept)


BROKEN = {
    "draws from elsewhere": (
        chooses(lambda size, kept, at: torch.randperm(size)[:kept].sort().values),
        r"^mine chooses otherwise when it is asked the same again \(capacity 0\.\d+\): a choice is a pure function",
    ),
    "not shared": (
        chooses(by_place, shared=lambda _: True),
        r"^mine says that all clients of one capacity hold the same \(shared\), but two of capacity 0\.\d+ do not",
    ),
    "not nested": (
        chooses(from_the_end, nested=lambda _: True),
        r"^mine says that narrower .* \(nested\), but that of capacity 0\.25 holds what that of 0\.5 does not",
    ),
    "changes the state": (
        chooses(in_place, reads=("state",)),
        r"^mine changes 'hidden\.1\.bias' of at\.state while it chooses",
    ),
    "changes the memory": (
        chooses(counting, reads=("memory",), init=lambda _: named("asked", {"rounds": torch.zeros(1)})),
        r"^mine changes 'asked\.rounds' of at\.memory while it chooses",
    ),
    "a norm": (
        trains(gradient=lambda g, w, start, sent, at: g / g.norm()),
        "^gradient of mine gives a vector other values than its two halves: a local rule is element-wise",
    ),
    "a limit on the norm": (
        trains(gradient=lambda g, w, start, sent, at: g * (5 / g.norm()).clamp(max=1)),
        "^gradient of mine gives a vector other values",
    ),
    "a mean in a report": (
        trains(reports=lambda w, start, sent, at: {"way": (start - w).mean().expand_as(w)}, adds=("way",)),
        "^reports of mine gives a vector other values",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_refused_before_anything_is_written(name, tmp_path):
    mine, why = BROKEN[name]
    settings = small("devices.capacities=a1-b1-c1", "training.clip=0")
    experiment = Experiment(settings, method=mine)
    before = {name: tensor.clone() for name, tensor in experiment.first_state.items()}
    with pytest.raises(OptionError, match=why):
        experiment.run(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert all(torch.equal(before[name], tensor) for name, tensor in experiment.first_state.items())


def test_packed_runs_are_asked_too():
    mine, why = BROKEN["not shared"]
    first = Experiment(small("engine=auto"), method=mine)
    second = Experiment(small("engine=auto", "seed=2"), method=mine, data=first.data)
    with pytest.raises(OptionError, match=why):
        run_in_lockstep([first, second])


def test_a_rule_that_fails_on_such_vectors_is_left_to_the_run():
    mine = trains(gradient=lambda g, w, start, sent, at: None)
    with pytest.raises(fedwidth.FedwidthError, match=r"must have the shape .* \(round 0, client \d"):
        Experiment(small("training.clip=0"), method=mine).run()


def test_methods_that_keep_their_promises():
    """Also where there are more capacities than clients."""
    for mine in (own_method.METHOD, own_method.MEDIAN, replace(method("fedrolex"), name="mine")):
        settings = small("data.clients=1", "data.partition=iid", "data.partition_options={}", "devices.per_round=1")
        Experiment(replace(settings, rounds=1), method=mine.with_options()).run()


def test_methods_of_the_package_are_not_asked(monkeypatch):
    assert all(is_shipped(each) for each in methods().values())
    assert is_shipped(method("fedrolex", local="fedprox", mu=0.1, step=2))
    assert not is_shipped(replace(method("fedrolex"), name="mine"))
    assert not is_shipped(replace(method("fedrolex", local="fedprox"), close=lambda closing: closing.average()))
    assert not is_shipped(method("own_method:METHOD"))
    monkeypatch.setattr(start, "check_promises", lambda *_, **__: pytest.fail("it was asked"))
    Experiment(small("rounds=1")).run()
