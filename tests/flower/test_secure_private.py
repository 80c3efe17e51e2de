"""Secure sums with the noise of devices: what a simulated run gives, from seeds that no server knows."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

from secure_nodes import secure_nodes
from test_secure_rounds import BASE, embedded, ran

from fedwidth.deployment.node import secure_sums
from fedwidth.deployment.secure.opened_rounds import OpenedRounds
from fedwidth.errors import OptionError
from fedwidth.randomness import numpy_generator
from small_runs import same

PRIVATE = BASE + 'privacy.noise = 0.5\nprivacy.clip = 1.0\nprivacy.adjacency = "zero-out"\n'


def test_devices_add_the_noise_that_is_simulated(tmp_path, monkeypatch):
    """With the simulation's generator in place of the system's the bits are the same, and nothing is said of losses."""
    monkeypatch.setattr(
        secure_sums, "draw_noise", lambda round, client: numpy_generator(1, "device noise", round, client)
    )
    with secure_nodes(tmp_path / "nodes", PRIVATE, 6) as nodes:
        result = ran(nodes, tmp_path)
    expected = embedded(PRIVATE)
    assert same(expected.server.state, dict(result.server.state))
    assert [line["train_loss"] for line in result.metrics] == [None] * 3
    assert result.summary["privacy"]["epsilon"] == pytest.approx(expected.summary["privacy"]["epsilon"])


def test_noise_is_drawn_anew_and_not_from_the_recipes_seed(tmp_path):
    """Two runs of one recipe would be equal but for the noise; its deviation in a mean of n is z S sqrt(n / m) / n."""
    states = []
    for number in range(2):
        with secure_nodes(tmp_path / f"nodes-{number}", PRIVATE.replace("rounds = 3", "rounds = 1"), 6) as nodes:
            states.append(ran(nodes, tmp_path, out=str(tmp_path / f"run-{number}")).server.state)
    one, other = (np.concatenate([tensor.numpy().ravel() for tensor in state.values()]) for state in states)
    difference = (one - other)[one != other]
    holders = 6  # of the innermost shell; others have fewer, and more noise
    least = 0.5 * np.sqrt(holders / 3) / holders * np.sqrt(2)
    assert difference.size > 100
    assert difference.std() > 0.8 * least


def test_what_is_spent_is_on_disk_before_a_round_is_opened(tmp_path, monkeypatch):
    noted, seen = OpenedRounds.note, []

    def note(self, round, attempt, clients):
        spent = json.loads((tmp_path / "run" / "privacy.json").read_text())
        seen.append((round, spent["rounds"]))
        noted(self, round, attempt, clients)

    monkeypatch.setattr(OpenedRounds, "note", note)
    with secure_nodes(tmp_path / "nodes", PRIVATE, 6) as nodes:
        ran(nodes, tmp_path)
    assert seen == [(0, 1), (1, 2), (2, 3)]


def test_without_secure_sums_private_runs_on_real_devices_are_refused(tmp_path):
    text = PRIVATE.replace("secure.enabled = true\n", "").replace("secure.min_clients = 3\n", "")
    with (
        secure_nodes(tmp_path / "nodes", text, 6) as nodes,
        pytest.raises(OptionError, match="with secure.enabled they add noise themselves"),
    ):
        ran(nodes, tmp_path, clip=0.0, screen=False)
