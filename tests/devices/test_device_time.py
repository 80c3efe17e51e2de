"""Time on simulated devices by hand, and who is left out of rounds: the same on every engine."""

from dataclasses import replace

import pytest

from fedwidth.analysis.target import reach
from fedwidth.devices.time import FAILED, LATE, fails
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from fedwidth.methods import method
from fedwidth.run.lockstep import run_in_lockstep
from fedwidth.settings import DeviceSettings, TrainingSettings
from fedwidth.training.batches import count_passes
from small_runs import contents, same, small

RATES = "devices.rates={1=2e6, '1/2'=1e6, '1/4'=4e5}"
BANDWIDTH = "devices.bandwidth={all=1e4}"


def expected(experiment, line, *, rates, bandwidth):
    """The slowest client of a round, counted from the numbers of an MLP with 64 inputs and 10 outputs.

    With h hidden units it has 74 h weights and h + 10 biases of four bytes, which travel down and up. A sample takes
    74 h multiply-adds forward, three times that in training.
    """
    slowest = 0.0
    for client, capacity in zip(line["clients"], line["capacities"], strict=True):
        hidden = round(8 * capacity)
        macs = 3 * 74 * hidden * len(experiment.partition[client])
        seconds = macs / rates.get(capacity, float("inf")) + 2 * 4 * (75 * hidden + 10) / bandwidth
        slowest = max(slowest, seconds)
    return slowest


class TestSeconds:
    rates = {1.0: 2e6, 0.5: 1e6, 0.25: 4e5}  # noqa: RUF012

    def test_a_round_lasts_as_long_as_its_slowest_client(self):
        experiment = Experiment(small(RATES, BANDWIDTH))
        result = experiment.run()
        for line in result.metrics:
            by_hand = expected(experiment, line, rates=self.rates, bandwidth=1e4)
            assert line["device_seconds"] == pytest.approx(by_hand)
        assert result.summary["device_seconds"] == pytest.approx(sum(line["device_seconds"] for line in result.metrics))

    def test_one_of_the_two_counts_alone(self):
        for changes, rates, bandwidth in (([RATES], self.rates, float("inf")), ([BANDWIDTH], {}, 1e4)):
            experiment = Experiment(small(*changes, "rounds=1"))
            (line,) = experiment.run().metrics
            by_hand = expected(experiment, line, rates=rates, bandwidth=bandwidth)
            assert line["device_seconds"] == pytest.approx(by_hand)

    def test_what_travels_beside_a_sub_model_takes_time_too(self):
        """SCAFFOLD sends the server's control variate down and its change up, both as large as the whole model.

        Eight hidden units: 610 parameters of four bytes, twice down and twice up.
        """
        (line,) = Experiment(small(BANDWIDTH, "method.name=scaffold", "rounds=1")).run().metrics
        assert line["device_seconds"] == pytest.approx(4 * 4 * 610 / 1e4)

    @pytest.mark.parametrize("changes", [["training.epochs=2"], ["training.steps=5"], ["method.name=scaffold"]])
    def test_samples_are_counted_as_engines_count_them(self, changes):
        experiment = Experiment(small(*changes, "devices.rates={all=1}", "rounds=1", "devices.capacities=a1"))
        (line,) = experiment.run().metrics
        tasks = method("heterofl").assign(experiment.plan, [(client, 1.0) for client in line["clients"]], 0)
        assert sum(experiment.costs.seconds(task) for task in tasks) == pytest.approx(line["macs"])

    def test_passes_of_short_batches(self):
        assert count_passes(25, TrainingSettings(batch_size=10, steps=3)) == 25
        assert count_passes(25, TrainingSettings(batch_size=10, steps=4)) == 35
        assert count_passes(5, TrainingSettings(batch_size=10, steps=4)) == 20

    def test_silence_changes_nothing_and_says_nothing(self):
        plain, timed = Experiment(small()).run(), Experiment(small(RATES, BANDWIDTH)).run()
        assert same(plain.server.state, timed.server.state)
        assert "device_seconds" not in plain.metrics[-1]
        assert "device_seconds" not in plain.summary


class TestAbsence:
    def test_failures_have_their_probability_and_depend_on_round_and_client_alone(self):
        devices = DeviceSettings(dropout=0.3)
        drawn = [fails(devices, client, round=round, seed=1) for round in range(40) for client in range(50)]
        assert 0.27 < sum(drawn) / 2000 < 0.33  # three standard deviations
        assert drawn == [fails(devices, client, round=round, seed=1) for round in range(40) for client in range(50)]
        assert not any(fails(DeviceSettings(), client, round=0, seed=1) for client in range(50))

    def test_a_client_that_fails_is_not_asked_and_is_written_down(self):
        plain = Experiment(small("rounds=6"))
        result = Experiment(small("rounds=6", "devices.dropout=0.4", BANDWIDTH)).run()
        absent = [line["absent"] for line in result.metrics if "absent" in line]
        assert absent
        assert {why for each in absent for why in each.values()} == {FAILED}
        for round, line in enumerate(result.metrics):
            drawn = plain.cohort(round)
            if "absent" in line:
                assert line["cohort"] == [list(pair) for pair in drawn]
            gone = [client for client, _ in drawn if fails(DeviceSettings(dropout=0.4), client, round=round, seed=1)]
            assert sorted(map(int, line.get("absent", {}))) == sorted(gone)
            assert line["clients"] == [client for client, _ in drawn if client not in gone]

    def test_the_round_is_that_of_the_others_alone(self):
        """As if only those who attend had been drawn: HeteroFL gives each a sub-model by its capacity alone."""
        changes = ["method.name=heterofl", "rounds=4"]
        dropped = Experiment(small(*changes, "devices.dropout=0.4"))
        attended = [
            [
                pair
                for pair in dropped.cohort(round)
                if not fails(dropped.settings.devices, pair[0], round=round, seed=1)
            ]
            for round in range(4)
        ]
        assert all(attended), "somebody is there in every round"
        others = Experiment(small(*changes)).run(cohort=lambda round: attended[round])
        assert same(dropped.run().server.state, others.server.state)

    def test_who_is_late_is_left_out_and_the_round_lasts_until_the_deadline(self):
        plain = Experiment(small("rounds=6", BANDWIDTH, "devices.rates={all=1e6}"))
        tasks = [
            (task.client, plain.costs.seconds(task))
            for round in range(6)
            for task in plain.method.assign(plain.plan, plain.cohort(round), round)
        ]
        deadline = sorted(seconds for _, seconds in tasks)[len(tasks) // 2]
        late = {client for client, seconds in tasks if seconds > deadline}
        changes = [BANDWIDTH, "devices.rates={all=1e6}", f"devices.deadline={deadline!r}"]
        for line in Experiment(small("rounds=6", *changes)).run().metrics:
            assert not late & set(line["clients"])
            if "absent" in line:
                assert set(line["absent"].values()) == {LATE}
                assert line["device_seconds"] == deadline
            else:
                assert line["device_seconds"] <= deadline

    def test_a_round_nobody_attends_changes_nothing(self):
        """Only sub-models of 1/4 travel in 0.128 s, and the first round has none of them."""
        experiment = Experiment(small(BANDWIDTH, "devices.deadline=0.13", "rounds=1"))
        assert {capacity for _, capacity in experiment.cohort(0)} == {1.0, 0.5}
        result = experiment.run()
        (line,) = result.metrics
        assert (line["clients"], line["train_loss"], line["device_seconds"]) == ([], None, 0.13)
        assert list(line["absent"].values()) == [LATE] * 3
        assert same(result.server.state, experiment.first_state)

    def test_a_deadline_that_nobody_can_keep_is_refused(self):
        """The smallest sub-model has two hidden units: 160 parameters of four bytes, down and up, at 1e4 a second."""
        with pytest.raises(OptionError, match=r"devices.deadline is 0.1 s, but the fastest client needs 0.128 s"):
            Experiment(small(BANDWIDTH, "devices.deadline=0.1"))
        Experiment(small(BANDWIDTH, "devices.deadline=0.13"))

    @pytest.mark.parametrize("name", ["fedrolex", "scaffold", "fedminoccurances"])
    def test_engines_and_packs_agree(self, name, tmp_path):
        changes = [f"method.name={name}", "rounds=4", "devices.dropout=0.3", RATES, BANDWIDTH]
        serial = Experiment(small(*changes)).run(tmp_path / "serial")
        others = [Experiment(small(*changes, f"engine={engine}")).run() for engine in ("vectorised", "cuda")]
        if name == "fedminoccurances":  # one that remembers will do: workers take seconds to start
            others.append(Experiment(small(*changes, "engine=processes", "workers=1")).run())
            assert same(serial.server.state, others[-1].server.state)
        if name != "scaffold":
            first = Experiment(small(*changes, "engine=vectorised"))
            twin = Experiment(small(*changes, "engine=vectorised", "devices.deadline=0.5"), data=first.data)
            packed = run_in_lockstep([first, twin])
            others.append(packed[0])
            alone = Experiment(twin.settings).run()
            assert any(LATE in line.get("absent", {}).values() for line in alone.metrics)
            assert [line.get("absent") for line in alone.metrics] == [each.get("absent") for each in packed[1].metrics]
        for other in others:
            for line, found in zip(serial.metrics, other.metrics, strict=True):
                names = ("clients", "absent", "cohort", "device_seconds", "bytes_up")
                assert [line.get(key) for key in names] == [found.get(key) for key in names]

    def test_resumed_to_the_same_bits(self, tmp_path):
        settings = small("rounds=4", "devices.dropout=0.3", BANDWIDTH, "method.name=fedminoccurances")
        Experiment(settings).run(tmp_path / "whole")
        with pytest.raises(Exception, match="stopped after round 1"):
            Experiment(settings).run(tmp_path / "parts", stop=lambda: True)
        Experiment(settings).run(tmp_path / "parts", resume=True)
        assert contents(tmp_path / "whole") == contents(tmp_path / "parts")

    def test_real_devices_are_not_simulated(self):
        for change in ("devices.dropout=0.1", BANDWIDTH):
            with pytest.raises(OptionError, match="are for simulated devices, and these are real"):
                Experiment(small(change)).run(cohort=lambda round: [(0, 1.0)])


class TestTarget:
    lines = [  # noqa: RUF012
        {"round": 1, "bytes_down": 1, "bytes_up": 2, "device_seconds": 10.0, "validation_accuracy": 0.5},
        {"round": 2, "bytes_down": 1, "bytes_up": 2, "device_seconds": 20.0, "validation_accuracy": 0.7},
    ]

    def test_validation_counts_where_the_test_set_was_not_seen(self):
        assert reach(self.lines, 0.6).device_seconds == 30
        assert reach(self.lines, 0.8) is None
        seen = [{**line, "global_accuracy": 0.1} for line in self.lines]
        assert reach(seen, 0.6) is None

    def test_what_is_no_number_was_not_measured(self):
        told = [{**self.lines[0], "validation_accuracy": "0.9"}, *self.lines[1:]]
        assert reach(told, 0.5) == reach([{**self.lines[0], "validation_accuracy": None}, *self.lines[1:]], 0.5)
        for unsaid in (None, "5", True):
            found = reach([{**self.lines[0], "bytes_down": unsaid}, *self.lines[1:]], 0.6)
            assert found == replace(reach(self.lines, 0.6), sent=None)

    def test_without_simulated_time_rounds_and_bytes_remain(self):
        lines = [{key: value for key, value in line.items() if key != "device_seconds"} for line in self.lines]
        found = reach(lines, 0.5)
        assert (found.round, found.sent, found.device_seconds) == (1, 3, None)
