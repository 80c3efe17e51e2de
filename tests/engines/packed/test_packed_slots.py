"""Runs whose clients train side by side in one pool of slots give, bit for bit, what they give one by one."""

import pytest
import torch

from fedwidth.config.read import read_settings
from fedwidth.engines.slots.slot import Slot
from fedwidth.errors import OptionError, UpdateError
from fedwidth.experiment import Experiment, Stopped
from fedwidth.methods import Method
from fedwidth.run.lockstep import run_in_lockstep
from fedwidth.run.packing import explain_packed_engine

BASE = ["rounds=3", "evaluation.every=1", "engine=cuda", "data.clients=8", "devices.per_round=5", "slots=2"]
BASE += ["devices.capacities=a1-b1-c1", "devices.dynamic=true", "training.batch_size=64"]
MODELS = {
    "mlp": ["model.name=mlp", "model.options={hidden=[16,8]}", "training.lr=0.05"],
    "cnn": ["model.options={widths=[8,8]}", "training.lr=0.05"],
}
VARIANTS = (
    ["seed=1"],
    ["seed=2", "method.name=heterofl"],
    ["seed=3", "method.name=fedminoccurances", "data.partition=dirichlet", "data.partition_options={alpha=1.0}"],
    ["seed=1", "method.name=fedbrb", "training.lr=0.02", "rounds=2"],
)


def experiments(*changes_of_each, model="mlp"):
    found = []
    for changes in changes_of_each:
        settings = read_settings("quickstart", [*BASE, *MODELS[model], *changes]).main
        found.append(Experiment(settings, data=found[0].data if found else None))
    return found


def equal(one, other):
    return all(torch.equal(one.server.state[name], other.server.state[name]) for name in one.server.state)


@pytest.mark.parametrize("model", MODELS)
def test_packed_runs_equal_single_runs_bit_for_bit(model):
    single = [run.run() for run in experiments(*VARIANTS, model=model)]
    packed = run_in_lockstep(experiments(*VARIANTS, model=model))
    for one, other in zip(single, packed, strict=True):
        assert equal(one, other)
        for name in ("train_loss", "global_accuracy", "clients"):
            assert [line[name] for line in one.metrics] == [line[name] for line in other.metrics]


def test_a_stopped_pack_goes_on_to_the_same_bits(tmp_path):
    places = [tmp_path / str(number) for number in range(len(VARIANTS))]
    whole = run_in_lockstep(experiments(*VARIANTS))
    with pytest.raises(Stopped):
        run_in_lockstep(experiments(*VARIANTS), places, stop=lambda: True)
    again = run_in_lockstep(experiments(*VARIANTS), places, resume=True)
    assert all(equal(one, other) for one, other in zip(whole, again, strict=True))


def test_the_next_round_is_chosen_once(monkeypatch):
    chosen = []
    real = Method.assign

    def assign(self, plan, cohort, round, *arguments, **options):
        chosen.append((self.name, round))
        return real(self, plan, cohort, round, *arguments, **options)

    monkeypatch.setattr(Method, "assign", assign)
    run_in_lockstep(experiments(*VARIANTS[:2]))
    assert sorted(chosen) == [(name, round) for name in ("fedrolex", "heterofl") for round in range(3)]


def test_equal_runs_train_once(monkeypatch):
    begun = []
    real = Slot.begin
    monkeypatch.setattr(Slot, "begin", lambda *a, **o: (begun.append(1), real(*a, **o))[1])
    one, other = run_in_lockstep(experiments(["seed=1"], ["seed=1"]))
    assert len(begun) == 3 * 5  # rounds, clients a round
    assert equal(one, other)


def test_no_memory_for_the_slots_of_all_runs_changes_nothing_but_their_number(monkeypatch):
    expected = run_in_lockstep(experiments(*VARIANTS[:2]))
    calls, real = [], Slot.begin

    def begin(*arguments, **options):
        calls.append(1)
        if len(calls) == 4:
            raise torch.OutOfMemoryError("no room")
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Slot, "begin", begin)
        with pytest.warns(UserWarning, match="goes on with fewer slots, 2 a width"):
            found = run_in_lockstep(experiments(*VARIANTS[:2]))
    assert all(equal(one, other) for one, other in zip(expected, found, strict=True))


def test_a_run_that_fails_is_named():
    runs = experiments(["seed=1"], ["seed=2", "training.lr=1e30"])
    with pytest.raises(UpdateError, match=r"^fedrolex with seed 2: client (.) sent a value .*client \1, capacity"):
        run_in_lockstep(runs)


def test_stacks_and_slots_do_not_mix():
    with pytest.raises(OptionError, match="cannot train as one batch: their engines differ"):
        run_in_lockstep(experiments(["seed=1"], ["seed=2", "engine=vectorised"]))


def test_what_is_said_of_them():
    assert explain_packed_engine(*experiments([])) == "cuda (their clients side by side in slots)"
    assert explain_packed_engine(*experiments(["engine=vectorised"])) == "vectorised (their clients stacked by size)"
