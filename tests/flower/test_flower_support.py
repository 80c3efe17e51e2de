"""Flower's column of the table of what trains what (docs/support.md): every yes has the embedded engine's bits."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

from test_flower import embedded, grid_of

from fedwidth.config.write import settings_toml
from fedwidth.deployment.run_config import RunConfig
from fedwidth.deployment.server import serve
from fedwidth.errors import OptionError
from objective_runs import settings
from small_runs import same
from support_table import SHORT, TASKS, pairs, support


def recipe_of(method, task):
    return settings_toml(settings(*TASKS[task], *SHORT, "devices.per_round=4", f"method.name={method}"))


def trains_or_says_why(method, task, folder):
    text = recipe_of(method, task)
    if support(method, task)["flower"] is None:
        result = serve(grid_of(text), text, RunConfig(out=str(folder)))
        assert same(embedded(text), dict(result.server.state))
        return
    with pytest.raises(OptionError):
        serve(grid_of(text), text, RunConfig(out=str(folder)))


@pytest.mark.parametrize(("method", "task"), pairs(every=False))
def test_a_yes_of_every_method_and_task(method, task, tmp_path):
    trains_or_says_why(method, task, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "task"), pairs(every=True))
def test_every_yes(method, task, tmp_path):
    trains_or_says_why(method, task, tmp_path)
