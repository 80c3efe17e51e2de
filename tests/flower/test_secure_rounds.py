"""Secure sums on the nodes of a grid in one process: the embedded engine's bits, dropouts, and what leaves a device."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

from replay import replayed
from secure_nodes import secure_nodes

from fedwidth.config.read import read_settings
from fedwidth.experiment import Experiment
from fedwidth.flower.run_config import RunConfig
from fedwidth.flower.server import serve
from small_runs import RECIPE, same

SECURE = """
devices.per_round = 6
secure.enabled = true
secure.min_clients = 3
"""
BASE = RECIPE.replace("devices.per_round = 3\n", "") + SECURE


def embedded(text: str):
    return Experiment(RunConfig().with_defaults(read_settings(text).main)).run()


@pytest.mark.parametrize("more", ['method.name = "fedrolex"\n'])
def test_5_the_grid_gives_the_embedded_engines_bits(tmp_path, more):
    text = BASE + more
    with secure_nodes(tmp_path / "nodes", text, 6) as nodes:
        result = serve(nodes.grid, text, RunConfig(out=str(tmp_path / "run")), roster=nodes.roster)
    expected = embedded(text)
    assert same(expected.server.state, dict(result.server.state))
    assert [line["secure"] for line in result.metrics] == [line["secure"] for line in expected.metrics]
    for found, plain in zip(result.metrics, expected.metrics, strict=True):
        assert found["train_loss"] == pytest.approx(plain["train_loss"], abs=1e-5)
    assert same(replayed(text, result.metrics), dict(result.server.state))
