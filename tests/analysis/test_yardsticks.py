"""The yardsticks of a run: which runs they are, and the gain over the best of them."""

import json
from pathlib import Path

import pytest

from fedwidth.analysis.comparison import Comparison, Row
from fedwidth.analysis.yardsticks import CAPPED, EXCLUDE, FULL, SMALLEST, find_gain, missing, yardstick_key, yardsticks
from fedwidth.config.check import check_settings
from fedwidth.config.read import read_settings
from fedwidth.devices.capacity import Capacities
from fedwidth.experiment import Experiment
from fedwidth.reproduce.queue_file import read_queue
from small_runs import contents, small

ROOT = Path(__file__).parents[2]


def described(settings):
    return {
        kind: (each.method.name, each.model.width, each.devices.capacities, each.devices.excluded)
        for kind, each in yardsticks(settings).items()
    }


def test_five_sizes():
    assert described(small("devices.capacities=a1-b2-e1", "method.name=heterofl")) == {
        EXCLUDE: ("fedavg", 1.0, "a1-b2-e1", [0.5, 0.0625]),
        SMALLEST: ("fedavg", 0.0625, "a1", []),
        FULL: ("fedavg", 1.0, "a1", []),
    }


def test_where_nobody_has_full_width_the_server_is_capped_and_nobody_is_left_by_excluding():
    assert described(small("devices.capacities=a0-b1-c2")) == {
        SMALLEST: ("fedavg", 0.25, "a1", []),
        CAPPED: ("fedrolex", 0.5, "a1-b2", []),
        FULL: ("fedavg", 1.0, "a1", []),
    }
    assert described(small("devices.capacities=3/4:1 1/4:0.5"))[CAPPED][1:3] == (0.75, "1:1.0 1/3:0.5")


def test_where_all_have_one_size_capped_is_smallest_for_all():
    found = yardsticks(small("devices.capacities=c1", "method.name=fedmosaic"))
    assert yardstick_key(found[CAPPED]) == yardstick_key(found[SMALLEST])
    assert found[CAPPED].method.name == "fedavg"


@pytest.mark.parametrize("changes", [["method.name=fedavg"], ["devices.capacities=a1"], ["method.name=fedprox"]])
def test_a_run_of_whole_models_needs_none(changes):
    assert yardsticks(small(*changes)) == {}


def test_a_server_that_is_narrow_already_and_excluded_devices():
    found = described(small("model.width=1/2", "devices.capacities=a1-b1-c1", "devices.excluded=[0.25]"))
    assert found[EXCLUDE] == ("fedavg", 0.5, "a1-b1-c1", [0.5, 0.25])
    assert found[SMALLEST] == ("fedavg", 0.125, "a1", [])
    # Where the widest are left out, a capped model would have to do without their data, too: neither can be had.
    assert list(described(small("devices.capacities=a1-b1-c1", "devices.excluded=[1.0]"))) == [SMALLEST, FULL]
    capped = described(small("devices.capacities=b1-c1-d1", "devices.excluded=[0.125]"))[CAPPED]
    assert capped == ("fedrolex", 0.5, "a1-b1-c1", [0.25])


def test_a_local_rule_stays_and_every_yardstick_can_be_run():
    found = yardsticks(small("local.name=fedprox", "devices.capacities=b1-c1"))
    assert {each.local.name for each in found.values()} == {"fedprox"}
    for each in found.values():
        check_settings(each)


@pytest.mark.parametrize("dynamic", ["true", "false"])
def test_capping_leaves_every_client_the_width_it_had(dynamic):
    run = small("devices.capacities=a0-b3-c1-e2", f"devices.dynamic={dynamic}")
    capped = yardsticks(run)[CAPPED]
    for client in range(6):
        widths = [
            each.model.width
            * Capacities.parse(each.devices.capacities).of_client(
                client, 6, round=5, seed=1, dynamic=each.devices.dynamic
            )
            for each in (run, capped)
        ]
        assert widths[0] == widths[1]


def test_excluding_is_the_same_bits_for_every_choice_of_sub_models(tmp_path):
    run = small("devices.capacities=a1-b1", "method.name=heterofl")
    other = small("devices.capacities=a1-b1", "devices.excluded=[0.5]", "method.name=fedrolex")
    assert yardstick_key(other) == yardstick_key(yardsticks(run)[EXCLUDE])
    Experiment(other).run(tmp_path / "other")
    Experiment(yardsticks(run)[EXCLUDE]).run(tmp_path / "exclude")
    assert contents(tmp_path / "other")[1:] == contents(tmp_path / "exclude")[1:]  # metrics and state


def test_they_are_the_yardsticks_of_the_quick_start_and_of_the_queue():
    quick = {run.label: run.settings for run in read_settings("quickstart").runs}
    found = yardsticks(quick["fedbrb"])
    assert yardstick_key(found[SMALLEST]) == yardstick_key(quick["smallest"])
    assert yardstick_key(found[FULL]) == yardstick_key(quick["largest"])
    jobs = {
        job.name: job.runs([], Path("work"))[0].settings
        for job in read_queue(ROOT / "results" / "queue.toml", only=["mosaic-*"])
    }
    fixed, none, alike = (jobs[f"mosaic-{mix}-fedrolex"] for mix in ("fixed", "no-full", "all-4th"))
    assert yardstick_key(yardsticks(fixed)[EXCLUDE]) == yardstick_key(jobs["mosaic-fixed-exclude"])
    assert yardstick_key(yardsticks(none)[CAPPED]) == yardstick_key(jobs["mosaic-no-full-capped"])
    assert yardstick_key(yardsticks(alike)[CAPPED]) == yardstick_key(jobs["mosaic-all-4th-capped"])


def test_the_gain_is_over_the_best_of_three_seed_by_seed():
    mine = {1: 80.0, 2: 82.0, 3: 81.0}
    found = {EXCLUDE: {1: 70.0, 2: 60.0, 3: 65.0}, SMALLEST: {1: 66.0, 2: 66.0}, FULL: {1: 99.0}}
    gain = find_gain(mine, found)
    assert gain.kind == SMALLEST  # 66 over the seeds it shares, excluding 65
    assert gain.difference.values == (14.0, 16.0)
    assert find_gain(mine, {FULL: {1: 99.0}}) is None
    assert find_gain(mine, {EXCLUDE: {7: 50.0}}) is None


def test_what_has_no_influence_on_a_run_does_not_matter():
    assert yardstick_key(small("seed=4", "engine=serial", "evaluation.every=3")) == yardstick_key(small())
    assert yardstick_key(small("rounds=9")) != yardstick_key(small())
    json.loads(yardstick_key(small()))


def test_where_all_have_one_size_it_does_not_matter_what_weak_devices_hold_or_how_slow_they_are():
    changes = ("devices.capacities=a0-b1-c1", "devices.correlate=labels", "devices.rates={'1/2'=2e9, '1/4'=1e9}")
    plain, timed = (yardsticks(small(changes[0], *more)) for more in ((), changes[1:]))
    for kind in (SMALLEST, FULL):
        assert yardstick_key(plain[kind]) == yardstick_key(timed[kind])
    assert timed[CAPPED].devices.correlate == "labels"
    for each in timed.values():
        check_settings(each)
        Experiment(each)


def test_profiles_that_a_user_wrote_stay_and_tell_no_yardstick_from_another():
    """All who take part are whole: runs with the profiles and without them serve alike."""
    with_profile = small("devices.capacities=a1-b1", "devices.profiles={'1/2'={'hidden.1'=0.75}}")
    found, plain = yardsticks(with_profile), yardsticks(small("devices.capacities=a1-b1"))
    assert found[EXCLUDE].devices.profiles == with_profile.devices.profiles
    assert found.keys() == plain.keys()
    assert all(yardstick_key(found[kind]) == yardstick_key(plain[kind]) for kind in plain)
    for each in found.values():
        check_settings(each)
        Experiment(each)


def test_what_a_method_needs_of_its_training_does_not_bind_its_yardsticks():
    """Where other runs have the same yardsticks without it, they serve; where there are none, it has its own."""
    bound, free = small("method.name=fedgkt", "model.options={hidden=[8, 8]}"), small("model.options={hidden=[8, 8]}")
    assert bound.training.augment is False
    assert free.training.augment is True
    both = missing({"bound": bound, "free": free})
    assert list(both) == [f"yardstick: {kind}" for kind in (EXCLUDE, SMALLEST, FULL)]
    assert all(each.training.augment for each in both.values())
    assert not any(each.training.augment for each in missing({"bound": bound}).values())
    rows = [Row(title, each, {1: 50.0}, {}) for title, each in ({"bound": bound, "free": free} | both).items()]
    assert Comparison(tuple(rows)).yardsticks[:2] == [{EXCLUDE: 2, SMALLEST: 3, FULL: 4}] * 2
