"""The engine of packed runs: equal work is done once, also ahead of its round, and with too little memory in parts."""

from dataclasses import fields

import pytest
import torch
from packed_runs import VARIANTS, experiments

from fedwidth.data import Partition
from fedwidth.engines.packed.clients import RunRound
from fedwidth.engines.packed.engine import PackedEngine
from fedwidth.engines.stacks.pool import StackPool
from fedwidth.engines.stacks.stack import Stack
from small_runs import same


def train(runs, stacks=None, *, ahead=False, rounds=3):
    """The servers of runs that have trained together, and the losses of each."""
    engine = PackedEngine([run.trainer for run in runs], stacks=stacks)
    state = {id(run): run.first_server() for run in runs}
    losses = {id(run): [] for run in runs}
    for round in range(rounds):
        asked = [RunRound(run.trainer, state[id(run)].state, tasks_of(run, state[id(run)]), round) for run in runs]
        last = round == rounds - 1
        coming = (lambda: ()) if last or not ahead else lambda round=round: look_ahead(runs, state, round + 1)
        for run, one, (sums, report) in zip(runs, asked, engine.start(asked, coming)(), strict=True):
            state[id(run)] = run.rounds.close(state[id(run)], one.tasks, sums, report)
            losses[id(run)].append(report.losses)
    engine.close()
    return [state[id(run)] for run in runs], [losses[id(run)] for run in runs]


def tasks_of(run, server):
    return run.rounds.send(server, run.rounds.assign(server, run.cohort(server.round)))


def look_ahead(runs, state, round):
    """The coming round of the runs whose methods can know it."""
    return [
        (run.trainer, run.method.assign(run.plan, run.cohort(round), round, seed=run.settings.seed), round)
        for run in runs
        if not run.method.reads
    ]


def near(one, other, tolerance=1e-10):
    return max(float((one.state[n] - other.state[n]).abs().max()) for n in one.state) < tolerance


class Counted:
    """Makes stacks and notes how many clients trained in each, and refuses those with more than so many rows."""

    def __init__(self, most=None):
        self.most, self.trained = most, []

    def make(self, *arguments, rows, **options):
        if self.most is not None and rows > self.most:
            raise torch.OutOfMemoryError("no room for so many rows")
        stack = Stack(*arguments, rows=rows, **options)
        train = stack.train

        def counted(starts, clients):
            self.trained.append(len(starts))
            return train(starts, clients)

        stack.train = counted
        return stack

    def pool(self, runs):
        return StackPool(runs[0].trainer, make_stack=self.make)


def test_without_memory_they_go_on_with_smaller_stacks():
    runs, made = experiments(*VARIANTS[1:3]), Counted(most=2)
    expected, expected_losses = train(experiments(*VARIANTS[1:3]))
    with pytest.warns(UserWarning, match="out of memory on cpu: the vectorised engine goes on with smaller stacks, "):
        found, losses = train(runs, made.pool(runs))
    assert max(made.trained) == 2
    assert sum(made.trained) == 3 * 6 * 2, "three rounds of six clients of two runs, each trained once"
    assert all(near(one, other) for one, other in zip(expected, found, strict=True))
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected_losses))


class NoRoom(Partition):
    """Runs out of memory the second time that a round asks how many samples a client has, which is to weigh it."""

    asked = 0

    def size(self, client):
        NoRoom.asked += 1
        if NoRoom.asked == 7:  # six clients in a round
            raise torch.OutOfMemoryError("no room")
        return super().size(client)


def test_no_memory_for_averaging_begins_the_round_again_with_fewer_stacks():
    (plain,), (full,) = experiments(VARIANTS[0]), experiments(VARIANTS[0])
    full.trainer.partition = NoRoom(**{each.name: getattr(full.partition, each.name) for each in fields(Partition)})

    def side_by_side(run):
        """On the CPU only merged stacks train side by side."""
        return StackPool(run.trainer, merges=True, rows=2)

    expected, _ = train([plain], side_by_side(plain))
    with pytest.warns(UserWarning, match="the vectorised engine goes on with fewer stacks, 4 at a time"):
        found, _ = train([full], side_by_side(full))
    assert NoRoom.asked == 3 * 6 + 1, "three rounds, one of them twice"
    assert same(dict(expected[0].state), dict(found[0].state))


def test_equal_work_is_done_once():
    # At full capacity every method is FedAvg; a window of half the layer moves by half of it in FedStack too.
    half = ["devices.capacities=0.5:1", "data.partition=random_labels", "data.partition_options={per_client=5}"]
    rolex = ["method.name=fedrolex", "method.options={stagger=true,step=0.5}"]
    runs = experiments(
        ["devices.capacities=1:1", "method.name=fedcover"],
        ["devices.capacities=1:1", "method.name=feddropout"],
        ["devices.capacities=1:1", "method.name=feddropout", "seed=2"],
        [*half, "method.name=fedstack"],
        [*half, *rolex],
        [*half, "method.name=fedcover"],
    )
    made = Counted()
    engine = PackedEngine([run.trainer for run in runs], stacks=made.pool(runs))
    first, other = runs[0].first_server(), runs[2].first_server()
    servers = [first, first, other, first, first, first]  # runs of one seed begin with one state
    asked = [RunRound(run.trainer, s.state, tasks_of(run, s), 0) for run, s in zip(runs, servers, strict=True)]
    one, twin, stranger, stack, window, cover = (sums for sums, _ in engine.start(asked)())
    engine.close()
    assert sum(made.trained) == 6 * 4, "six clients of four runs"
    assert (one is twin, one is stranger, stack is window, stack is cover) == (True, False, True, False)


class Busy(StackPool):
    """Does what there is to do meanwhile, as a pool on a GPU does."""

    def train_groups(self, groups, meanwhile=None):
        super().train_groups(groups)
        if meanwhile is not None:
            meanwhile()


class Shuffled(Partition):
    """Counts how often a client's samples are asked for, which is to shuffle them."""

    asked = 0

    def __getitem__(self, client):
        Shuffled.asked += 1
        return super().__getitem__(client)


def test_working_ahead_changes_no_bit_and_shuffles_once():
    def shuffled(ahead):
        runs = experiments(*VARIANTS)
        for run in runs:
            given = {each.name: getattr(run.partition, each.name) for each in fields(Partition)}
            run.trainer.partition = Shuffled(**given)
        Shuffled.asked = 0
        pool = Busy(runs[0].trainer) if ahead else None
        return train(runs, pool, ahead=ahead)[0], Shuffled.asked

    expected, once = shuffled(ahead=False)
    found, again = shuffled(ahead=True)
    assert again == once > 0
    assert all(same(dict(one.state), dict(other.state)) for one, other in zip(expected, found, strict=True))
