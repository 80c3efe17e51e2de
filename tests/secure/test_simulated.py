"""The simulated round against the whole protocol with its masks, on sub-models of a real model (numbers 1 and 35)."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from parties import make_devices, session_of
from torch import nn

import fedwidth
from fedwidth.core.submodel import state_of
from fedwidth.secure.aggregator import Aggregator
from fedwidth.secure.fixed_point import FixedPoint
from fedwidth.secure.session import digest_values
from fedwidth.secure.simulate import Sums
from fedwidth.training.server.layout import layouts_of

CAPACITIES = (1.0, 0.5, 0.25, 1.0, 0.5, 0.25, 1.0)


@pytest.mark.parametrize(("name", "gone"), [("fedrolex", ()), ("fedrolex", (0, 4)), ("fedbrb", (5,))])
def test_1_masks_change_nothing_of_what_is_simulated(name, gone):
    """Words of three widths in a round whose windows wrap around, added up with keys and masks, and without."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    plan, state = fedwidth.trace(model, torch.zeros(2, 6)), state_of(model)
    tasks = fedwidth.method(name).assign(plan, list(enumerate(CAPACITIES)), 13)
    layouts = layouts_of({t.part.key: t.index for t in tasks}, list(plan.axes), by_shells=name == "fedrolex")
    held = {task.client: layouts[task.part.key].words.segments for task in tasks}
    devices, point = make_devices(held), FixedPoint(len(tasks))
    lengths = {s: n for one in layouts.values() for s, n in zip(one.words.segments, one.words.lengths, strict=True)}
    session = session_of(devices, held, lengths=lengths, fixed_point=point)
    server, plain, values = Aggregator(session), Sums(held, session.min_clients), {}
    for client, device in devices.items():
        server.collect(client, device.share(session))
    for task in tasks:
        layout = layouts[task.part.key]
        received = layout.flatten(task.part.cut(state, plan))
        values |= {segment: digest_values(own) for segment, own in layout.words.split(received).items()}
        trained = received + np.random.default_rng(task.client).normal(0, 0.1, received.size).astype(np.float32)
        words, _ = point.words(trained, received)
        own = [layout.words.split(each) for each in (words, received)]
        masked = devices[task.client].mask(0, 0, *own, server.letters_for(task.client))
        assert (masked == words).mean() < 0.05
        if task.client not in gone:
            server.add(task.client, masked)
            plain.add(task.client, layout.words.split(words))
    alive = server.settle()
    for client in alive:
        server.answer(client, devices[client].open(0, 0, alive))
    found, expected = server.open(values), plain.opened()
    assert found.keys() == expected.keys()
    assert len(found) > 1
    for segment, total in found.items():
        assert total.tolist() == expected[segment].tolist()


def test_35_a_small_device_needs_little_memory():
    """At 1/16 of PreResNet18, 44,500 words: three times as much as the sub-model, and 4 MB."""
    length = 44_500
    devices = make_devices(range(20))
    session = session_of(devices, dict.fromkeys(devices, (0,)), lengths={0: length})
    server = Aggregator(session)
    for client, device in devices.items():
        server.collect(client, device.share(session))
    received = np.zeros(length, np.float32)
    letters = server.letters_for(0)
    tracemalloc.start()
    words, _ = FixedPoint(20).words(received + np.float32(0.1), received)
    devices[0].mask(0, 0, {0: words}, {0: received}, letters)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= 3 * 4 * length + 4_000_000
