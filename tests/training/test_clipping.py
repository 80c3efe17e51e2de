"""Updates clipped to the round's median and compared with each other; strikes; the alarm."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedwidth.core.cohort import CohortSum
from fedwidth.core.submodel import state_of
from fedwidth.core.updates import Update
from fedwidth.engines.serial import SerialEngine
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from fedwidth.run.metrics import describe_round
from fedwidth.training.engine import Report
from fedwidth.training.rounds import Rounds
from fedwidth.training.server.clipping import clip_updates, cosines, merged
from fedwidth.training.server.quarantine import Quarantine
from fedwidth.training.server.state import Server
from small_runs import TwoUnits, ones, same, small, trainer_of


def round_of(*cohort):
    """The tasks of a round of the two-unit model, whose state is a = (1, 2), b the identity; clients from 0."""
    trainer = trainer_of(TwoUnits(), *ones(clients=len(cohort)), name="heterofl")
    tasks = trainer.method.assign(trainer.plan, list(enumerate(cohort)), 0)
    return trainer.plan, state_of(trainer.model), [replace(task, single=True) for task in tasks]


def sums_of(plan, state, tasks, changes):
    """What clients would send whose a.weight changed by these."""
    sums = []
    for task, change in zip(tasks, changes, strict=True):
        sub = task.part.cut(state, plan)
        sub["a.weight"] = sub["a.weight"] + torch.tensor(change).reshape(-1, 1)
        total = CohortSum(task.index)
        total.add(Update(sub, task.index, client=task.client))
        sums.append(total)
    return sums


def test_the_worked_example():
    """Norms 1, 2 and 5 at two widths: the lower median is 2, the bound at 1.5 is 3, so (3, 4) becomes (1.8, 2.4)."""
    plan, state, tasks = round_of(1.0, 0.5, 1.0)
    sums = sums_of(plan, state, tasks, [[1.0, 0.0], [2.0], [3.0, 4.0]])
    clipped = clip_updates(state, sums, tasks, plan, 1.5)
    assert clipped.excess == pytest.approx((1 / 3, 2 / 3, 5 / 3))
    assert clipped.sums[0] is sums[0], "what is within the bound keeps its bits"
    assert clipped.sums[1] is sums[1]
    assert clipped.sums[2].mean["a.weight"].flatten().tolist() == pytest.approx([1 + 1.8, 2 + 2.4])
    assert torch.equal(clipped.sums[2].mean["b.weight"], torch.eye(2))
    assert clipped.sums[2].weight == sums[2].weight


def test_of_two_clients_the_shorter_one_is_the_measure():
    plan, state, tasks = round_of(1.0, 1.0)
    sums = sums_of(plan, state, tasks, [[1.0, 0.0], [0.0, -100.0]])
    assert clip_updates(state, sums, tasks, plan, 2.0).sums[1].mean["a.weight"].flatten().tolist() == [1.0, 0.0]


def test_reports_are_bounded_by_their_own_median():
    plan, state, tasks = round_of(1.0, 1.0, 1.0)
    sums = sums_of(plan, state, tasks, [[1.0, 0.0]] * 3)
    for total, length in zip(sums, (1.0, 1.0, 50.0), strict=True):
        total.reports["change"] = CohortSum.of(
            total.index, {"a.weight": torch.full((2, 1), length)}, {"a.weight": 1.0}, 1
        )
    clipped = clip_updates(state, sums, tasks, plan, 2.0)
    assert clipped.sums[2].reports["change"].mean["a.weight"].flatten().tolist() == pytest.approx([2.0, 2.0])
    assert clipped.excess[2] == pytest.approx(25.0)


def test_cosines_are_with_the_others_where_the_client_holds():
    """Unit 0: +1, +1, -1 (made equally long). The third is against both others: -1. The first two: 1·(1-1)/… = 0."""
    _, state, tasks = round_of(0.5, 0.5, 0.5)
    changes = [{"a.weight": torch.tensor([[value]])} for value in (1.0, 2.0, -3.0)]
    assert cosines(changes, tasks, state) == pytest.approx([0.0, 0.0, -1.0])
    _, state, tasks = round_of(1.0, 0.5)
    changes = [{"a.weight": torch.tensor([[3.0], [4.0]])}, {"a.weight": torch.tensor([[1.0]])}]
    assert cosines(changes, tasks, state) == pytest.approx([0.6, 1.0]), "the first goes (0.6, 0.8), the second (1, -)"


def test_an_update_against_the_others_is_left_out_and_never_half_of_them():
    plan, state, tasks = round_of(*[0.5] * 6)
    sums = sums_of(plan, state, tasks, [[1.0]] * 5 + [[-1.0]])
    assert clip_updates(state, sums, tasks, plan, 2.0, screen=True).opposed == {5: pytest.approx(-1.0)}
    sums = sums_of(plan, state, tasks, [[1.0]] * 3 + [[-1.0]] * 3)
    assert len(clip_updates(state, sums, tasks, plan, 2.0, screen=True).opposed) == 2
    plan, state, tasks = round_of(*[0.5] * 5)
    sums = sums_of(plan, state, tasks, [[1.0]] * 4 + [[-1.0]])
    assert clip_updates(state, sums, tasks, plan, 2.0, screen=True).opposed == {}, "of a few nobody knows who is right"


@pytest.mark.parametrize("method", ["fedrolex", "heterofl", "fedbrb"])
def test_a_bound_nobody_reaches_changes_no_bit(method):
    plain, clipped = (Experiment(small(f"method.name={method}", f"server.clip={clip}")) for clip in (0, 1e6))
    assert same(dict(plain.run().server.state), dict(clipped.run().server.state))


@pytest.mark.parametrize("engine", ["processes", "vectorised"])
def test_every_engine_clips_alike(engine):
    """A bound that everybody but the median reaches."""
    found = [
        Experiment(small("server.clip=0.5", "server.screen=true", f"engine={name}", "workers=2")).run()
        for name in ("serial", engine)
    ]
    assert all(line["clipped"] for line in found[0].metrics)
    for line, other in zip(found[0].metrics, found[1].metrics, strict=True):
        assert line["clients"] == other["clients"]
        assert line["clipped"] == pytest.approx(other["clipped"], rel=1e-2)
    for name, tensor in found[0].server.state.items():
        torch.testing.assert_close(tensor, found[1].server.state[name], rtol=1e-4, atol=1e-5)


def test_cohorts_are_added_as_without_clipping():
    plan, state, tasks = round_of(1.0, 0.5, 1.0)
    sums = sums_of(plan, state, tasks, [[1.0, 0.0], [2.0], [3.0, 4.0]])
    together = merged(sums, tasks)
    assert [total.clients for total in together] == [2, 1]
    assert together[0].mean["a.weight"].flatten().tolist() == [1 + 2.0, 2 + 2.0]


def test_parts_that_are_no_slices_are_not_compared():
    experiment = Experiment(small())
    with pytest.raises(OptionError, match=r"server.clip must be 0 and server.screen false"):
        Experiment(small("server.clip=2"), method=replace(experiment.method, slices=False))


class Spoiled(SerialEngine):
    """Client 0 sends its change a thousand times as large, whenever it is asked."""

    def run(self, state, tasks, round, **_more):
        sums, report = super().run(state, tasks, round)
        for total, task in zip(sums, tasks, strict=True):
            if task.client == 0:
                sent = task.part.cut(state, self.trainer.plan)
                for name, mean in total.mean.items():
                    mean.copy_(sent[name] + 1000 * (mean - sent[name]))
        return sums, report


SPOILED = ("server.clip=2", "server.strikes=2", "server.quarantine=3", "devices.per_round=6", "rounds=8")


def test_strikes_lead_to_quarantine_which_is_noted_and_ends():
    experiment = Experiment(small(*SPOILED))
    lines = experiment.run(engine=Spoiled(experiment.trainer)).metrics
    assert [0 in line["clients"] for line in lines] == [True, True, False, False, False, True, True, False]
    assert lines[0]["clipped"]["0"] > 100
    assert [line.get("quarantined") for line in lines] == [None, {"0": 5}, None, None, None, None, {"0": 10}, None]
    assert lines[2]["absent"] == {"0": "in quarantine until round 5"}


@pytest.mark.parametrize("killed_after", [1, 2, 4])
def test_quarantine_survives_kill_and_resume(tmp_path, killed_after):
    class Killed(BaseException):
        pass

    def die(line):
        if line["round"] == killed_after:
            raise Killed

    whole = Experiment(small(*SPOILED))
    expected = whole.run(engine=Spoiled(whole.trainer))
    first = Experiment(small(*SPOILED, "checkpoint_every=1"))
    with pytest.raises(Killed):
        first.run(tmp_path, on_round=die, engine=Spoiled(first.trainer))
    again = Experiment(small(*SPOILED, "checkpoint_every=1"))
    found = again.run(tmp_path, resume=True, engine=Spoiled(again.trainer))
    assert [line["clients"] for line in found.metrics] == [line["clients"] for line in expected.metrics]
    assert found.server.quarantine == expected.server.quarantine
    assert same(dict(found.server.state), dict(expected.server.state))


def test_good_conduct_takes_strikes_away_and_none_are_counted_without_a_limit():
    quarantine = (
        Quarantine().after([1], round=0, strikes=2, quarantine=5).after([], good=[1], round=1, strikes=2, quarantine=5)
    )
    assert not quarantine
    assert not Quarantine().after([1, 2], round=0, strikes=0, quarantine=5)


def test_a_refused_answer_is_a_strike():
    report = Report((1,), (0.5,), absent={3: "not finite", 4: "late"}, refused=frozenset([3]), excess={5: 1.5, 6: 5.1})
    assert report.struck == [3, 6]


def test_a_round_of_quarantined_clients_learns_nothing():
    experiment = Experiment(small())
    server = replace(experiment.first_server(), quarantine=Quarantine({}, dict.fromkeys(range(6), 1)))
    from fedwidth.training.round import run_round

    after, tasks, report = run_round(experiment.rounds, server, experiment.cohort(0), SerialEngine(experiment.trainer))
    assert (after.round, tasks, len(report.absent)) == (1, [], 3)
    assert isinstance(experiment.rounds, Rounds)
    assert isinstance(after, Server)


def test_a_fall_of_accuracy_is_an_alarm():
    """From round 3 on everyone sends the opposite of what it learnt, many times over."""

    class Turned(SerialEngine):
        def run(self, state, tasks, round, **_more):
            sums, report = super().run(state, tasks, round)
            for total, task in zip(sums, tasks, strict=False):
                sent = task.part.cut(state, self.trainer.plan)
                for name, mean in total.mean.items() if round >= 4 else ():
                    mean.copy_(sent[name] - 20 * (mean - sent[name]))
            return sums, report

    experiment = Experiment(
        small("method.name=fedavg", "rounds=6", "evaluation.every=1", "evaluation.alarm=5", "devices.capacities=a1")
    )
    lines = experiment.run(engine=Turned(experiment.trainer)).metrics
    best = max(line["global_accuracy"] for line in lines[:5])
    assert "alarm" not in lines[3]
    assert lines[5]["alarm"] == round(100 * (best - lines[5]["global_accuracy"]), 2)
    assert lines[5]["alarm"] > 5


@pytest.mark.parametrize("change", ["server.clip=2", "server.screen=true"])
def test_a_pack_says_that_it_cannot_compare(change):
    from fedwidth.engines.packed.limits import why_not_pack

    reason = why_not_pack([Experiment(small(change, "engine=vectorised")).trainer])
    assert reason == "server.clip and server.screen compare single updates, which a pack does not keep"


def test_what_does_not_count_has_cost_as_much():
    experiment = Experiment(small("devices.rates={all=1e6}", "devices.capacities=a1-b1"))
    server = experiment.first_server()
    tasks = experiment.rounds.assign(server, [(0, 0.5), (1, 1.0)])
    report = Report((10, 20), (0.5, 0.5))
    whole = describe_round(experiment, server.skip(), tasks, report)
    screened = report.without({1: "its update points away"}, tasks)
    assert screened.unused == ((tasks[1], 20),)
    left = describe_round(experiment, server.skip(), tasks[:1], screened, [(0, 0.5), (1, 1.0)])
    assert left["clients"] == [0]
    for key in ("bytes_up", "bytes_down", "macs", "device_seconds"):
        assert left[key] == whole[key]
