"""How long a run will take, worked by hand from records of others."""

from dataclasses import replace

import pytest

from fedwidth.data import load
from fedwidth.reproduce.estimate import SAMPLES, count_steps, estimate_seconds
from recorded_runs import record
from small_runs import small


def test_samples_are_those_of_the_data():
    assert SAMPLES["digits"] == len(load("digits").train)


def test_steps_and_times_by_hand():
    # 1442 digits on 6 clients: 240 samples and a third, 4 batches of 64; 3 clients, 3 rounds.
    assert count_steps(small()) == 36
    assert count_steps(small("data.validation=0.5")) == 18  # 120 samples a client, not 240
    assert count_steps(small("training.steps=7", "data.name=text")) == 63
    assert count_steps(small("data.name=text")) is None
    known = [record(small("method.name=heterofl"), seconds=6.0, steps=36), record(small(), seconds=18.0, steps=36)]
    assert estimate_seconds(small("rounds=6"), known) == pytest.approx(36.0), "like the run of the same method"
    assert estimate_seconds(small("method.name=fedbrb"), known) == pytest.approx(6.0), "else the faster of both"
    assert estimate_seconds(small("model.name=cnn", "model.options={}"), known) is None
    wide = small("devices.capacities=a1", "training.batch_size=8", "method.name=fedavg")
    pack = [replace(record(small("devices.capacities=a0-e1"), seconds=1.0, steps=36), packed=6)]
    assert estimate_seconds(wide, pack) is None, "a pack says nothing about other sizes"
    other = small("devices.capacities=a0-e1", "training.batch_size=32")
    assert estimate_seconds(other, pack) == pytest.approx(count_steps(other) / 36), "but about other batch sizes"
    batches = [record(small(f"training.batch_size={n}"), seconds=t, steps=36) for n, t in ((4, 1.0), (32, 8.0))]
    assert estimate_seconds(small("devices.capacities=a1"), batches) == pytest.approx(8.0), "64 is nearer to 32"
    assert estimate_seconds(small("devices.capacities=a1"), [*batches, *known]) == pytest.approx(6.0), "equal"
