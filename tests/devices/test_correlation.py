"""Who is weak: capacities by client from a list, and dealt by what clients hold."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedwidth.config.influence import identity
from fedwidth.config.read import read_settings
from fedwidth.config.write import settings_toml
from fedwidth.data import Partition, Shares, make_partition
from fedwidth.devices.capacity import Capacities
from fedwidth.devices.correlation import correlate, weak_classes
from fedwidth.errors import DataError, OptionError
from fedwidth.experiment import Experiment
from fedwidth.run.lockstep import run_in_lockstep
from small_runs import same, small

FOUR = Capacities.parse("1:1 1/2:1 1/4:1 1/8:1")
OWN = "devices.capacities=[1, 0.5, 0.5, 0.25, 0.25, 0.25]"


def partition_of(held):
    """A client for each list of labels."""
    owner = np.repeat(np.arange(len(held)), [len(labels) for labels in held])
    shares = Shares.of(owner, len(held))
    return Partition("by hand", shares, shares, torch.tensor([label for labels in held for label in labels]))


def dealt(held, kind, strength=1.0, seed=1):
    return list(correlate(FOUR, partition_of(held), kind, strength, seed=seed).by_client)


class TestOrder:
    def test_by_samples(self):
        held = [[0] * 3, [0] * 9, [0], [0] * 5]
        assert dealt(held, "few-samples") == [0.25, 1.0, 0.125, 0.5]
        assert dealt(held, "many-samples") == [0.5, 0.125, 1.0, 0.25]

    def test_by_labels(self):
        """Of the first class a half weighs 1/2, of the second 1/4, of the third 1/8, of the fourth 1/16."""
        first, second, third, fourth = weak_classes(4, seed=1)
        held = [[second, fourth], [third, fourth], [first, fourth], [second, third]]
        # 1/4 + 1/16, 1/8 + 1/16, 1/2 + 1/16 and 1/4 + 1/8
        assert dealt(held, "labels") == [0.5, 1.0, 0.125, 0.25]

    def test_by_labels_in_unequal_parts(self):
        first, second, third, fourth = weak_classes(4, seed=1)
        held = [[first, fourth, fourth, fourth], [second, second, second, fourth], [third] * 4, [first] * 4]
        # 1/4 + 3/32 = 11/32, 3/8 + 1/32 = 13/32, 1/4 and 1
        assert dealt(held, "labels") == [0.5, 0.25, 1.0, 0.125]

    def test_other_seeds_other_classes(self):
        assert len({tuple(weak_classes(10, seed)) for seed in range(20)}) == 20
        assert sorted(weak_classes(10, 3)) == list(range(10))

    def test_samples_without_a_label_do_not_count(self):
        first, *_, last = weak_classes(4, seed=1)
        found = dealt([[first, -100], [first, first], [last, -100], [last, last]], "labels")
        assert found[1] == 0.125
        assert found[0] == 0.25

    def test_sequences_have_no_labels(self):
        shares = Shares.of(np.array([0, 1]), 2)
        partition = Partition("by hand", shares, shares, torch.zeros(2, 3, dtype=torch.long))
        with pytest.raises(DataError, match="no one label a sample: choose few-samples or many-samples"):
            correlate(FOUR, partition, "labels", 1.0, seed=1)
        assert correlate(FOUR, partition, "few-samples", 1.0, seed=1).by_client is not None


UNEQUAL = [[0] * (client + 1) for client in range(200)]


class TestStrength:
    def agreement(self, strength):
        """Rank correlation of capacity and number of samples."""
        mix = Capacities.parse("a1-b1-c1-d1-e1")
        found = correlate(mix, partition_of(UNEQUAL), "few-samples", strength, seed=4).by_client
        assert Counter(found) == Counter(mix.assign(200, 4).tolist()), "as many have each capacity as without"
        return float(np.corrcoef(np.log2(found), np.arange(200))[0, 1])

    def test_from_the_plain_draw_to_the_full_order(self):
        agreements = [self.agreement(strength) for strength in (0.0, 0.25, 0.5, 0.75, 1.0)]
        assert agreements == sorted(agreements)
        assert abs(agreements[0]) < 0.2
        assert 0.3 < agreements[2] < 0.9
        assert agreements[-1] > 0.97  # five steps of a straight line

    def test_none_and_nothing_are_the_published_draw(self):
        mix, partition = Capacities.parse("a1-b1-c1-d1-e1"), partition_of(UNEQUAL)
        assert correlate(mix, partition, "none", 1.0, seed=4) is mix
        for kind in ("few-samples", "labels"):
            found = correlate(mix, partition, kind, 0.0, seed=4)
            assert list(found.by_client) == mix.assign(200, 4).tolist()


class TestList:
    def test_clients_have_what_it_says(self):
        settings = small(OWN)
        assert read_settings(settings_toml(settings)).main == settings
        experiment = Experiment(settings)
        assert [experiment.cohorts.capacity_of(client, 3) for client in range(6)] == [1, 0.5, 0.5, 0.25, 0.25, 0.25]
        assert experiment.capacities.assign(6, 9).tolist() == [1, 0.5, 0.5, 0.25, 0.25, 0.25]
        assert experiment.rounds.enrolled == (1.0, 0.5, 0.25)
        for line in experiment.run().metrics:
            own = [settings.devices.capacities[client] for client in line["clients"]]
            assert line["capacities"] == own

    def test_a_list_of_what_the_mix_deals_gives_the_same_bits(self):
        mix = Experiment(small())
        own = mix.capacities.assign(6, 1).tolist()
        listed = Experiment(replace(small(), devices=replace(small().devices, capacities=own)))
        assert same(mix.run().server.state, listed.run().server.state)
        assert identity(small()) != identity(small(OWN))

    def test_a_partition_of_another_size_is_refused(self):
        partition = make_partition(Experiment(small()).data, "iid", 7)
        with pytest.raises(OptionError, match="lists 6 capacities for 7 clients: give one for each client"):
            Experiment(small(OWN), partition=partition)

    def test_texts_as_numbers(self):
        settings = small('devices.capacities=[1, "1/2", "1/2", "1/4", 0.25, 0.25]')
        assert settings == small(OWN)


def test_every_engine_and_packs_give_the_same(tmp_path):
    changes = ["devices.correlate=labels", "data.partition_options={per_client=2}"]
    serial = Experiment(small(*changes)).run()
    processes = Experiment(small(*changes, "engine=processes", "workers=1")).run()
    assert same(serial.server.state, processes.server.state)
    variants = [changes, changes[1:], ["devices.correlate=labels", "data.partition=iid"], [OWN]]

    def runs():
        made = [small(*variant, "engine=vectorised") for variant in variants]
        first = Experiment(made[0])
        return [first, *(Experiment(settings, data=first.data) for settings in made[1:])]

    alone = [run.run() for run in runs()]
    for one, other in zip(alone, run_in_lockstep(runs()), strict=True):
        for line, packed in zip(one.metrics, other.metrics, strict=True):
            assert (line["clients"], line["capacities"]) == (packed["clients"], packed["capacities"])
    assert len({str(one.metrics[0]["capacities"]) for one in alone}) > 1
