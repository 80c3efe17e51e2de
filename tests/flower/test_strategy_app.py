"""Someone else's Flower app, changed as docs/flower-strategy.md says: in Flower's simulation, and over TLS."""

from __future__ import annotations

import difflib
import importlib.util
import sys

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower runs what needs it")

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from in_process import InProcessGrid
from stranger_app import APP, Flower, accuracies, changed_files, write_app

MARK = "  # changed"


def test_the_page_changes_at_most_20_lines_of_the_server_and_5_of_the_client():
    for path, text in changed_files().items():
        before, after = (APP / path).read_text().splitlines(), text.replace(MARK, "").splitlines()
        new = [line[2:] for line in difflib.ndiff(before, after) if line.startswith("+ ") and line[2:].strip()]
        marked = [line.removesuffix(MARK) for line in text.splitlines() if line.endswith(MARK)]
        assert set(new) <= set(marked), "the page marks every line that is new"
        assert len(new) <= (20 if "server" in path else 5), new
    assert len(changed_files()) == 2


@pytest.fixture
def modules(monkeypatch):
    before = set(sys.modules)
    yield monkeypatch
    for name in set(sys.modules) - before:
        if name.startswith("digits_app"):
            del sys.modules[name]


def test_the_changed_app_trains_in_process(tmp_path, modules, capsys):
    app = write_app(tmp_path)
    modules.syspath_prepend(str(app))
    client = importlib.import_module("digits_app.client_app").app
    server = importlib.import_module("digits_app.server_app").app
    assert isinstance(client, ClientApp)
    assert isinstance(server, ServerApp)
    config = {
        "num-server-rounds": 5,
        "fraction-evaluate": 1.0,
        "local-epochs": 2,
        "learning-rate": 0.05,
        "batch-size": 16,
    }
    nodes = {n: {"partition-id": n, "num-partitions": 4, "capacity": ("1", "1/4")[n % 2]} for n in range(4)}
    grid = InProcessGrid(client, nodes, config)
    found = {}
    from fedwidth.flower.strategy.strategy import Strategy

    start = Strategy.start

    def kept(self, *words, **named):
        found["result"] = start(self, *words, **named)
        return found["result"]

    modules.setattr(Strategy, "start", kept)
    server(grid, next(iter(grid.contexts.values())))
    result = found["result"]
    assert result.evaluate_metrics_serverapp[5]["accuracy"] > 0.6 > result.evaluate_metrics_serverapp[0]["accuracy"]
    assert {"eval_acc", "eval_acc-at-1", "eval_acc-at-0.25"} <= set(result.evaluate_metrics_clientapp[5])


@pytest.fixture
def flower(tmp_path):
    made = []

    def start(**named):
        made.append(Flower(tmp_path / "processes", **named))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.mark.slow
def test_the_changed_app_trains_in_flowers_simulation(tmp_path, flower):
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed, which Flower's simulation needs: pip install 'flwr[simulation]'")
    app = write_app(tmp_path, config='capacities = "1,1/4"\n')
    said = flower(nodes=4, simulated=True).run(app)
    found = accuracies(said)
    assert len(found) >= 4, said
    assert found[3] > found[0] + 0.2, said
    assert "eval_acc-at-0.25" in said


@pytest.mark.slow
def test_the_changed_app_trains_over_tls(tmp_path, flower):
    app = write_app(tmp_path)
    running = flower(nodes=4, simulated=False)
    running.start_nodes(("1", "1/4"))
    said = running.run(app)
    found = accuracies(said)
    assert len(found) >= 4, said
    assert found[3] > found[0] + 0.2, said
    assert "eval_acc-at-0.25" in said
