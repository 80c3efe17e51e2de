"""Slots that one pack leaves to the next: captured once, and the bits are those of runs alone."""

from contextlib import ExitStack, closing

import pytest
import torch
from torch import nn

from fedwidth.engines.packed.kept_pools import KeptPools
from fedwidth.engines.packed.limits import why_not_pack
from fedwidth.engines.slots.making import make_slot
from fedwidth.engines.slots.pool import SlotPool
from fedwidth.experiment import Experiment, Stopped
from fedwidth.reproduce import running
from fedwidth.reproduce.running import reproduce
from fedwidth.run.lockstep import run_in_lockstep
from fedwidth.run.recorder import Recorder
from small_runs import RECIPE, evaluated, same, small

BASE = ("engine=cuda", "data.clients=8", "devices.per_round=4", "devices.dynamic=true", "training.lr=0.05")


def experiments(data, *changes, method="fedrolex"):
    """Two runs that share `data`, and train in lanes of their own."""
    return [run(f"seed={seed}", f"method.name={method}", *changes, data=data) for seed in (1, 2)]


def run(*changes, **given):
    return Experiment(small(*BASE, *changes), **given)


@pytest.fixture
def data():
    return run().data


@pytest.fixture
def made(monkeypatch):
    """The slots that were made so far."""
    found = []

    def make(*given):
        found.append(make_slot(*given))
        return found[-1]

    # Packs have their pools made, so that there is no argument to count with.
    monkeypatch.setitem(SlotPool.__init__.__kwdefaults__, "make_slot", make)
    return found


@pytest.fixture
def pools_open(monkeypatch):
    """The pools that were made and not closed yet."""
    found, begin, end = [], SlotPool.__init__, SlotPool.close

    def opened(pool, *given, **named):
        begin(pool, *given, **named)
        found.append(pool)

    def closed(pool):
        end(pool)
        found.remove(pool)

    monkeypatch.setattr(SlotPool, "__init__", opened)
    monkeypatch.setattr(SlotPool, "close", closed)
    return found


def same_as_alone(packed, alone):
    return all(same(one.server.state, other.run().server.state) for one, other in zip(packed, alone, strict=True))


def test_a_pack_of_another_method_trains_in_the_slots_of_the_one_before_to_the_bits_of_runs_alone(data, made):
    with closing(KeptPools()) as pools:
        run_in_lockstep(experiments(data), pools=pools)
        before = len(made)
        other = ("training.lr=0.02", "slots=3", "rounds=4")
        second = run_in_lockstep(experiments(data, *other, method="heterofl"), pools=pools)
        run_in_lockstep(experiments(data), pools=pools)
        assert before <= len(made) < before + 4, "a lane may meet one client more of a size than before"
    assert same_as_alone(second, experiments(data, *other, method="heterofl"))


def test_a_pack_that_trains_otherwise_gets_slots_of_its_own_and_the_others_are_given_back(data, made, pools_open):
    with closing(KeptPools()) as pools:
        run_in_lockstep(experiments(data), pools=pools)
        before, first = len(made), list(pools_open)
        adam = run_in_lockstep(experiments(data, "training.optimiser=adam"), pools=pools)
        assert len(made) >= 2 * before
        assert len(pools_open) == 2
        assert not any(pool in first for pool in pools_open)
        fjord = run_in_lockstep(experiments(data, method="fjord"), pools=pools)
        assert len(made) >= 3 * before
    assert not pools_open
    assert same_as_alone(adam, experiments(data, "training.optimiser=adam"))
    assert same_as_alone(fjord, experiments(data, method="fjord"))


class Scaled(nn.Module):
    """Multiplies by a number that its text does not show."""

    def __init__(self, gain, act=torch.relu):
        super().__init__()
        self.one, self.two, self.gain, self.act = nn.Linear(64, 8), nn.Linear(8, 10), gain, act

    def forward(self, x):
        return self.two(self.gain * self.act(self.one(x.flatten(1))))


@pytest.mark.parametrize(
    "other", [lambda: Scaled(3), lambda: Scaled(1, torch.tanh), lambda: Scaled(torch.tensor([3.0]))]
)
def test_models_that_look_alike_but_compute_something_else_do_not_share_slots(data, other):
    def runs(make):
        torch.manual_seed(0)
        models = [make(), make()]
        return [run(f"seed={seed}", data=data, model=model) for seed, model in enumerate(models)]

    with closing(KeptPools()) as pools:
        run_in_lockstep(runs(lambda: Scaled(1)), pools=pools)
        second = run_in_lockstep(runs(other), pools=pools)
    assert same_as_alone(second, runs(other))


def test_a_method_that_freezes_layers_lays_images_out_otherwise_and_leaves_no_slots_to_others(data):
    """On a processor: group norms behind frozen layers cannot have their channels last there."""

    def runs(method):
        torch.manual_seed(0)
        layers = [nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 10))
        changes = (f"method.name={method}", "devices.capacities='1:1 1/2:1'")
        return [run(f"seed={seed}", *changes, data=data, model=model) for seed in (1, 2)]

    with closing(KeptPools()) as pools:
        run_in_lockstep(runs("cocofl"), pools=pools)
        second = run_in_lockstep(runs("fedavg"), pools=pools)
    assert same_as_alone(second, runs("fedavg"))


def test_rows_whose_models_are_sliced_differently_do_not_share_slots(tmp_path):
    rows = (
        '[grid]\ncolumns = [{ label = "c" }]\nrows = [{ label = "kept", model.keep = "hidden.1" }, { label = "cut" }]'
    )
    recipe = RECIPE.replace("hidden = [8]", "hidden = [8, 8]").replace('"serial"', '"cuda"')
    (tmp_path / "table.toml").write_text(recipe + rows)
    done = evaluated(tmp_path, packed="seeds")
    assert done == evaluated(tmp_path, packed=False)
    assert len(done) == 4


def test_the_rows_of_a_table_share_slots(tmp_path, made, pools_open):
    rows = '[grid]\ncolumns = [{ label = "c" }]\nrows = [{ label = "one" }, { label = "two", training.lr = 0.02 }]'
    (tmp_path / "table.toml").write_text(RECIPE.replace('"serial"', '"cuda"') + rows)
    asked = {"seeds": [1, 2], "packed": "seeds", "say": lambda _: None}
    table, counts = [str(tmp_path / "table.toml")], []
    for only in (["one/c"], ["one/c", "two/c"]):
        made.clear()
        reproduce(table, only=only, results=tmp_path / f"r{len(only)}", work=tmp_path / f"w{len(only)}", **asked)
        counts.append(len(made))
        assert not pools_open
    assert counts[0] == counts[1] > 0, "the second row makes none"


def test_slots_that_do_not_suit_a_row_are_given_back_before_it_is_tried_out(tmp_path, pools_open, monkeypatch):
    counts = []

    def tried(trainers):
        counts.append(len(pools_open))
        return why_not_pack(trainers)

    monkeypatch.setattr(running, "why_not_pack", tried)
    sgd, adam = '{ label = "sgd" }, { label = "slow", training.lr = 0.02 }', 'training.optimiser = "adam"'
    rows = f'[grid]\ncolumns = [{{ label = "c" }}]\nrows = [{sgd}, {{ label = "adam", {adam} }}]'
    (tmp_path / "table.toml").write_text(RECIPE.replace('"serial"', '"cuda"') + rows)
    asked = {"seeds": [1, 2], "packed": "seeds", "say": lambda _: None}
    reproduce([str(tmp_path / "table.toml")], results=tmp_path / "results", work=tmp_path / "work", **asked)
    assert counts == [0, 2, 0], "a trial needs memory too"


def test_a_pool_that_comes_back_holds_no_batches(data, pools_open, tmp_path):
    held = []

    def stop():
        held.append(max(len(pool.batches_ahead) for pool in pools_open))
        return True

    with closing(KeptPools()) as pools:
        with pytest.raises(Stopped):
            run_in_lockstep(experiments(data), [tmp_path / "1", tmp_path / "2"], stop=stop, pools=pools)
        assert max(held) > 0, "those of the round that is not trained any more"
        assert [len(pool.batches_ahead) for pool in pools_open] == [0, 0]


def test_slots_of_a_pack_that_stopped_are_kept_and_of_one_that_failed_are_not(data, pools_open, tmp_path):
    def fail(*_):
        raise ValueError("the reader went away")

    with closing(KeptPools()) as pools:
        places = [tmp_path / "1", tmp_path / "2"]
        with pytest.raises(Stopped):
            run_in_lockstep(experiments(data), places, stop=lambda: True, pools=pools)
        assert len(pools_open) == 2
        with pytest.raises(ValueError, match="the reader went away"):
            run_in_lockstep(experiments(data), places, resume=True, on_round=fail, pools=pools)
        assert not pools_open
        found = run_in_lockstep(experiments(data), places, resume=True, pools=pools)
        assert len(pools_open) == 2
    assert same_as_alone(found, experiments(data))


def test_a_pool_that_had_to_shrink_is_not_kept(data, pools_open):
    with closing(KeptPools()) as pools:
        trainer = experiments(data)[0].trainer
        with pools.lend(trainer) as first, pytest.warns(UserWarning, match="fewer slots"):
            first.shrink()
        assert not pools_open
        with pools.lend(trainer) as second:
            assert second is not first
        with pools.lend(trainer) as third:
            assert third is second


def test_runs_that_are_stacked_need_none_and_what_was_kept_is_given_back(data, pools_open):
    stacked = experiments(data, "engine=vectorised")[0].trainer
    with closing(KeptPools()) as pools, ExitStack() as lent:
        run_in_lockstep(experiments(data), pools=pools)
        assert len(pools_open) == 2
        assert lent.enter_context(pools.lend(stacked)) is None
        assert not pools_open


def test_a_pack_of_fewer_lanes_gives_the_pools_back_that_it_leaves_idle(data, pools_open):
    counts = []
    with closing(KeptPools()) as pools:
        run_in_lockstep(experiments(data), pools=pools)
        run_in_lockstep(experiments(data)[:1], pools=pools, on_round=lambda *_: counts.append(len(pools_open)))
    assert set(counts) == {1}


def test_a_pack_on_its_own_gives_its_slots_back_before_runs_are_finished(data, pools_open, monkeypatch):
    finish, counts = Recorder.finish, []
    monkeypatch.setattr(Recorder, "finish", lambda mine: counts.append(len(pools_open)) or finish(mine))
    run_in_lockstep(experiments(data))
    assert counts == [0, 0]
