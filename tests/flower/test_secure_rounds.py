"""Secure sums on the nodes of a grid in one process: the embedded engine's bits, and clients that disappear.

The numbers are those of the notes' section 5: 5 and 12 to 18. What leaves a device is in test_secure_secrets.py.
"""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

from replay import replayed
from secure_nodes import SecureNodes, kind_of, secure_nodes

from fedwidth.config.read import read_settings
from fedwidth.deployment.engine import FlowerEngine, TooFewAnswers
from fedwidth.deployment.run_config import RunConfig
from fedwidth.deployment.secure.opened_rounds import OpenedRounds
from fedwidth.deployment.server import serve
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from fedwidth.secure.aggregator import Aggregator
from small_runs import RECIPE, same

pytestmark = pytest.mark.filterwarnings("ignore:secure.min_clients is 2", "ignore:server.label_rows is true")

BASE = RECIPE.replace("devices.per_round = 3\n", "devices.per_round = 6\nsecure.enabled = true\n")
PAIRS = BASE.replace('"a1-b1-c1"', "[1, 1, 0.5, 0.5, 0.25, 0.25]") + "secure.min_clients = 2\n"
BASE += "secure.min_clients = 3\n"
QUICK = {"patience_seconds": 0.1, "opening_seconds": 60.0, "round_seconds": 120.0}


def ran(nodes: SecureNodes, tmp_path, log=lambda _: None, **config):
    given = RunConfig(**{"out": str(tmp_path / "run"), **QUICK, **config})
    return serve(nodes.grid, nodes.recipe, given, roster=nodes.roster, log=log)


def embedded(text: str):
    return Experiment(RunConfig().with_defaults(read_settings(text).main)).run()


@pytest.mark.parametrize(
    "text",
    [
        BASE,
        PAIRS + 'method.name = "heterofl"\nserver.weighting = "samples"\nsecure.max_weight = 500\n',
        PAIRS + 'method.name = "fedbrb"\n',
        PAIRS + 'server.label_rows = true\nserver.optimiser = "fedadam"\n',
        BASE + 'local.name = "fedprox"\nserver.weighting = "model-size"\n',
        BASE + 'method.name = "fedimportance"\n',
        BASE + 'method.name = "feddropout"\nmethod.options = { draw = "round" }\n',
    ],
)
def test_5_the_grid_gives_the_embedded_engines_bits(tmp_path, text):
    with secure_nodes(tmp_path / "nodes", text, 6) as nodes:
        result = ran(nodes, tmp_path)
    expected = embedded(text)
    assert same(expected.server.state, dict(result.server.state))
    for found, plain in zip(result.metrics, expected.metrics, strict=True):
        assert found["secure"] == plain["secure"]
        assert found["clients"] == plain["clients"]
        assert found["train_loss"] == pytest.approx(plain["train_loss"], abs=1e-5)
    assert sum(line["secure"]["segments"] - line["secure"]["closed"] for line in result.metrics) >= 3


def test_a_round_has_two_exchanges(tmp_path):
    """The shares of the first round come first; those of the others ride on the opening before."""
    with secure_nodes(tmp_path / "nodes", BASE, 6) as nodes:
        ran(nodes, tmp_path)
        kinds = [kind_of(message) for client, message, _ in nodes.seen if client == 0]
    assert kinds == ["introduce", "share", "train", "open share", "train", "open share", "train", "open"]


@pytest.mark.parametrize(("number", "stage"), [(13, "share"), (14, "train"), (15, "open"), (15, "open share")])
def test_13_14_15_a_client_that_fails_at_a_stage_is_survived(tmp_path, number, stage):
    """Five of six must be there, and are: the sums are those of the embedded engine with the same absentees."""
    del number
    with secure_nodes(tmp_path / "nodes", BASE.replace("rounds = 3", "rounds = 4"), 6) as nodes:
        failures = []

        def before(client, message):
            if client == 5 and kind_of(message) == stage and not failures:
                failures.append(stage)
                raise RuntimeError("killed")

        nodes.before = before
        if stage == "open":
            nodes.recipe = nodes.recipe.replace("rounds = 4", "rounds = 1")
        result = ran(nodes, tmp_path)
        assert failures == [stage]
        assert same(replayed(nodes.recipe, result.metrics), dict(result.server.state))
    missing = [5 not in line["clients"] for line in result.metrics]
    expected = {"share": [True], "train": [True], "open": [False], "open share": [False, True]}[stage]
    assert missing[: len(expected)] == expected
    if len(missing) > 1:
        assert not missing[-1], "it takes part again"
    for line in result.metrics:
        assert line["secure"]["closed"] < line["secure"]["segments"]


def test_12_a_client_that_never_introduces_itself_is_not_waited_for(tmp_path):
    with secure_nodes(tmp_path / "nodes", BASE, 6) as nodes:

        def before(client, message):
            if client == 5:
                raise RuntimeError("killed")

        nodes.before = before
        lines: list[str] = []
        result = ran(nodes, tmp_path, lines.append, wait_for=5)
        assert [sorted(line["clients"]) for line in result.metrics] == [[0, 1, 2, 3, 4]] * 3
        assert any("client 5" in line or "node 105" in line for line in lines)
        assert same(replayed(nodes.recipe, result.metrics), dict(result.server.state))


def test_14_too_few_words_repeat_the_round_before_anything_is_opened(tmp_path):
    """Exactly one fewer than must send theirs: the next attempt has other secrets, and succeeds."""
    with secure_nodes(tmp_path / "nodes", BASE, 6) as nodes:
        failures = []

        def before(client, message):
            if kind_of(message) == "train" and client in (4, 5) and len(failures) < 2:
                failures.append(client)
                raise RuntimeError("killed")

        nodes.before, lines = before, []
        result = ran(nodes, tmp_path, lines.append)
    (said,) = [line for line in lines if "it is repeated" in line]
    assert "round 1: only 4 clients have sent their words, and 5 are needed" in said
    opened = [json.loads(line) for line in (tmp_path / "run" / "opened.jsonl").read_text().splitlines()]
    assert [(entry["round"], entry["attempt"]) for entry in opened] == [(1, 1), (2, 0), (3, 0)]
    assert same(replayed(BASE, result.metrics), dict(result.server.state))


def test_15_too_few_that_open_close_the_round_for_good(tmp_path):
    """One fewer than must answer: devices that have answered would not do so again, so the round is not repeated."""
    with secure_nodes(tmp_path / "nodes", BASE, 6) as nodes:

        def before(client, message):
            if client in (4, 5) and "open" in kind_of(message) and round_of(message) == 1:
                raise RuntimeError("killed")

        nodes.before, lines = before, []
        result = ran(nodes, tmp_path, lines.append)
    assert any("round 2 stays closed, and is not repeated: only 4 clients have answered" in line for line in lines)
    assert [line["secure"]["closed"] for line in result.metrics][1] == 3
    assert len(result.metrics) == 3


def round_of(message) -> int:
    return int(message.content.config_records["secure"].get("round", -1))


def test_17_18_all_of_the_widest_are_lost(tmp_path):
    """Their shell stays closed, and what the others trained is opened."""
    text = PAIRS.replace("rounds = 3", "rounds = 1").replace("data.clients = 6", "data.clients = 7")
    text = text.replace("per_round = 6", "per_round = 7").replace("[1, 1, 0.5,", "[1, 0.25, 0.5, 0.5,")
    with secure_nodes(tmp_path / "nodes", text, 7) as nodes:

        def before(client, message):
            if kind_of(message) == "train" and nodes.capacity(message) == 1.0:
                raise RuntimeError("killed")

        nodes.before = before
        result = ran(nodes, tmp_path)
    line = result.metrics[0]
    assert 1.0 not in line["capacities"]
    assert (line["secure"]["segments"], line["secure"]["closed"]) == (3, 1)
    assert same(replayed(text, result.metrics), dict(result.server.state))


def test_a_trainer_that_is_started_again_takes_part_with_another_key(tmp_path):
    text = BASE.replace("rounds = 3", "rounds = 5")
    with secure_nodes(tmp_path / "nodes", text, 6) as nodes:
        restarted = []

        def before(client, message):
            if client == 2 and kind_of(message) == "train" and not restarted:
                restarted.append(nodes.residents[2])
                nodes.start(2)

        nodes.before = before
        result = ran(nodes, tmp_path)
        missing = [2 not in line["clients"] for line in result.metrics]
        assert missing[0]
        assert not missing[-1]
        assert same(replayed(text, result.metrics), dict(result.server.state))


def test_a_server_that_dies_after_an_opening_never_opens_the_round_again(tmp_path, monkeypatch):
    """The round is on disk before anybody is asked to open it; after that the server is killed, and started again."""
    open_sums, openings = Aggregator.open, []

    def die(self, values):
        openings.append((self.session.round, self.session.attempt))
        if self.session.round == 1 and not dying:
            dying.append(True)
            raise KeyboardInterrupt
        return open_sums(self, values)

    dying: list[bool] = []
    monkeypatch.setattr(Aggregator, "open", die)
    with secure_nodes(tmp_path / "nodes", BASE, 6) as nodes:
        with pytest.raises(KeyboardInterrupt):
            ran(nodes, tmp_path)
        assert 1 in OpenedRounds(tmp_path / "run")
        lines: list[str] = []
        result = ran(nodes, tmp_path, lines.append)
    assert any("round 2 is skipped: the round was opened before the server stopped" in line for line in lines)
    assert openings == [(0, 0), (1, 0), (2, 0)]
    assert [len(line["clients"]) for line in result.metrics] == [6, 0, 6]
    assert same(replayed(BASE, result.metrics), dict(result.server.state))


def test_24_a_server_that_begins_anew_gets_no_second_opening(tmp_path):
    """Another run of the same recipe, with trainers that were started again: the devices remember on disk."""
    with secure_nodes(tmp_path / "nodes", BASE, 6) as nodes:
        ran(nodes, tmp_path)
        for client in range(6):
            nodes.start(client)
        with pytest.raises(TooFewAnswers, match="client 0: it has not shared: client 0 has opened round 2: none up to"):
            ran(nodes, tmp_path, out=str(tmp_path / "again"), attempts=1)
    with secure_nodes(tmp_path / "nodes", f"seed = 5\n{BASE}", 6) as nodes:
        assert len(ran(nodes, tmp_path, out=str(tmp_path / "other")).metrics) == 3, "other training is another matter"


def test_only_devices_on_the_roster_take_part(tmp_path):
    with secure_nodes(tmp_path / "nodes", BASE, 6) as nodes:
        lines: list[str] = []
        nodes.roster = "".join(line for line in nodes.roster.splitlines(keepends=True) if "client-4" not in line)
        result = ran(nodes, tmp_path, lines.append, wait_for=5)
    assert any("client 4 is not on the roster of this run" in line for line in lines)
    assert all(4 not in line["clients"] for line in result.metrics)


def test_26_a_key_that_its_device_has_not_signed_is_left_out(tmp_path):
    with secure_nodes(tmp_path / "nodes", BASE, 6) as nodes:
        lines: list[str] = []
        nodes.residents[3].key = nodes.key(2)
        result = ran(nodes, tmp_path, lines.append, wait_for=5)
    assert any("the key of client 3 is not signed by its device for this run" in line for line in lines)
    assert all(3 not in line["clients"] for line in result.metrics)


def test_27_a_device_that_asks_for_more_clients_does_not_share(tmp_path):
    with secure_nodes(tmp_path / "nodes", BASE, 6, config={1: {"min-clients": 4}}) as nodes:
        lines: list[str] = []
        result = ran(nodes, tmp_path, lines.append)
    assert any("client 1 (node 101)" in line and "opens sums of 3, this device's of 4" in line for line in lines)
    assert all(1 not in line["clients"] for line in result.metrics)


def test_without_a_trainer_there_are_no_secure_sums(tmp_path):
    with secure_nodes(tmp_path / "nodes", BASE, 6, config={1: {"trainer": ""}}) as nodes:
        lines: list[str] = []
        result = ran(nodes, tmp_path, lines.append, wait_for=5)
    assert any("secure sums need the resident trainer" in line for line in lines)
    assert all(1 not in line["clients"] for line in result.metrics)


@pytest.mark.parametrize(
    ("config", "roster", "why"),
    [
        ({"over_select": 0.5}, True, "run config key 'over-select' must be 0 with secure.enabled"),
        ({}, "", "the app has no roster of its devices, which secure sums need: start the run by run.sh"),
        ({}, "client-1 = 3", "the roster of the app cannot be read"),
        ({}, 2, "secure.min_clients is 3, but the roster has only 2 devices: nothing would ever be opened"),
    ],
)
def test_what_a_run_lacks_is_one_line_before_anything_is_written(tmp_path, config, roster, why):
    with secure_nodes(tmp_path / "nodes", BASE, 6) as nodes:
        if isinstance(roster, str):
            nodes.roster = roster
        elif roster is not True:
            nodes.roster = "\n".join(nodes.roster.splitlines()[:roster])
        with pytest.raises(OptionError, match=re.escape(why)) as caught:
            ran(nodes, tmp_path, **config)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_the_plain_engine_refuses_secure_settings():
    trainer = Experiment(read_settings(BASE).main).trainer
    with pytest.raises(OptionError, match="here updates would not be hidden"):
        FlowerEngine(None, trainer, nodes=dict)
