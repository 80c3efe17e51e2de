"""Slots that one pack leaves to the next: captured once, and the bits are those of runs alone."""

from contextlib import closing

import pytest

from fedwidth.engines.packed.kept_pools import KeptPools
from fedwidth.engines.slots.making import make_slot
from fedwidth.engines.slots.pool import SlotPool
from fedwidth.experiment import Experiment, Stopped
from fedwidth.run.lockstep import run_in_lockstep
from small_runs import same, small


def experiments(data, *changes, method="fedrolex"):
    """Two runs that share `data`, and train in lanes of their own."""
    return [run(f"seed={seed}", f"method.name={method}", *changes, data=data) for seed in (1, 2)]


def run(*changes, data=None):
    base = ["engine=cuda", "data.clients=8", "devices.per_round=4", "devices.dynamic=true", "training.lr=0.05"]
    return Experiment(small(*base, *changes), data=data)


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

    # Lanes make their pools themselves, so that there is no argument to count with.
    monkeypatch.setitem(SlotPool.__init__.__kwdefaults__, "make_slot", make)
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


def test_a_pack_that_trains_otherwise_gets_slots_of_its_own(data, made):
    with closing(KeptPools()) as pools:
        run_in_lockstep(experiments(data), pools=pools)
        before = len(made)
        adam = run_in_lockstep(experiments(data, "training.optimiser=adam"), pools=pools)
        assert len(made) >= 2 * before
        fjord = run_in_lockstep(experiments(data, method="fjord"), pools=pools)
        assert len(made) >= 3 * before
    assert same_as_alone(adam, experiments(data, "training.optimiser=adam"))
    assert same_as_alone(fjord, experiments(data, method="fjord"))


def test_slots_of_a_pack_that_stopped_are_kept_and_of_one_that_failed_are_not(data, made, tmp_path):
    def fail(*_):
        raise ValueError("the reader went away")

    with closing(KeptPools()) as pools:
        places = [tmp_path / "1", tmp_path / "2"]
        with pytest.raises(Stopped):
            run_in_lockstep(experiments(data), places, stop=lambda: True, pools=pools)
        stopped = len(made)
        with pytest.raises(ValueError, match="the reader went away"):
            run_in_lockstep(experiments(data), places, resume=True, on_round=fail, pools=pools)
        failed = len(made)
        assert failed < 2 * stopped
        found = run_in_lockstep(experiments(data), places, resume=True, pools=pools)
        assert len(made) > failed
    assert same_as_alone(found, experiments(data))


def test_a_pool_that_had_to_shrink_is_not_kept(data, made):
    with closing(KeptPools()) as pools:
        trainers = [experiments(data)[0].trainer]
        with pools.lend(trainers) as first, pytest.warns(UserWarning, match="fewer slots"):
            first.shrink()
        with pools.lend(trainers) as second:
            assert second is not first
        with pools.lend(trainers) as third:
            assert third is second


def test_runs_that_are_stacked_need_none(data):
    with closing(KeptPools()) as pools, pools.lend([experiments(data, "engine=vectorised")[0].trainer]) as found:
        assert found is None
