"""Rounds that go on, whoever lies, hangs or says nothing."""

from __future__ import annotations

import json
import time

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from in_process import InProcessGrid
from replay import replayed
from test_flower import CLIENTS, embedded, grid_of, recipe, set_fact, spoiled

from fedwidth.deployment import attendance
from fedwidth.deployment.access.enrolment import Enrolled, write_enrolled
from fedwidth.deployment.node.client_app import client_app
from fedwidth.deployment.run_config import RunConfig
from fedwidth.deployment.server import serve
from fedwidth.errors import StateError
from fedwidth.printable import printable
from small_runs import same

ONE = recipe().replace("rounds = 3", "rounds = 1")
THREE_OF_FOUR = recipe().replace(f"per_round = {CLIENTS}", "per_round = 3")
QUICK = {"introduction_seconds": 0.3, "patience_seconds": 0.3}


def grid_with(text, answer, nodes=None):
    """A grid whose nodes answer as `answer(kind, client, message, usual)` says; None: nothing ever comes."""
    app = client_app(text)

    def call(message, context):
        return answer(
            message.metadata.message_type, context.node_config["client"], message, lambda: app(message, context)
        )

    return InProcessGrid(call, nodes or {100 + client: {"client": client} for client in range(CLIENTS)}, {})


def served(grid, text, out, **keys):
    """The result and the log of a deployment."""
    lines = []
    result = serve(grid, text, RunConfig(out=str(out), **{**QUICK, **keys}), log=lines.append)
    return result, lines


def test_an_oversized_introduction_is_refused(tmp_path):
    def answer(kind, client, message, usual):
        if kind == "query" and client == 3:
            content = RecordDict({"node": ConfigRecord({"client": 3, "rubbish": bytes(1 << 20)})})
            return Message(content, reply_to=message)
        return usual()

    text = THREE_OF_FOUR.replace("rounds = 3", "rounds = 1")
    result, lines = served(grid_with(text, answer), text, tmp_path)
    assert 3 not in result.metrics[0]["clients"]
    assert "node 103 (client 3) is left out: its introduction has 1,048,597 bytes, more than 16,384" in lines


def test_only_devices_of_the_groups_that_are_named_take_part(tmp_path):
    text = THREE_OF_FOUR.replace("rounds = 3", "rounds = 1")
    groups = {0: "ward-1", 1: "ward-2", 2: "ward-1", 3: ""}
    nodes = {100 + c: {"client": c, **({"group": group} if group else {})} for c, group in groups.items()}
    grid = grid_with(text, lambda _kind, _client, _message, usual: usual(), nodes)
    result, lines = served(grid, text, tmp_path, groups="ward-1, ward-2")
    assert sorted(result.metrics[0]["clients"]) == [0, 1, 2]
    assert "node 103 (client 3) is left out: its group is none, and this run is for ward-1, ward-2" in lines


def test_a_mute_device_costs_seconds_once_and_gets_a_line(tmp_path):
    def answer(kind, client, message, usual):
        return None if kind == "query" and client == 3 else usual()

    began = time.monotonic()
    result, lines = served(grid_with(THREE_OF_FOUR, answer), THREE_OF_FOUR, tmp_path, wait_seconds=60.0)
    assert time.monotonic() - began < 20
    assert [sorted(line["clients"]) for line in result.metrics] == [[0, 1, 2]] * 3
    assert lines.count("node 103 is left out: it has not introduced itself within 0.3 s") == 1


def test_a_late_introduction_is_found_in_a_later_round(tmp_path):
    """It is answered when nobody waits for it any more."""
    text, late = recipe().replace(f"per_round = {CLIENTS}", "per_round = 3"), []
    app = client_app(text)

    def call(message, context):
        if message.metadata.message_type == "query" and context.node_config["client"] == 3:
            late.append((message, app(message, context)))
            return None
        return app(message, context)

    grid = InProcessGrid(call, {100 + client: {"client": client} for client in range(CLIENTS)}, {})

    def after(line):
        if line["round"] == 1:
            grid._replies[late[0][0].metadata.message_id] = late[0][1]

    lines = []
    serve(grid, text, RunConfig(out=str(tmp_path), **QUICK), on_round=after, log=lines.append)
    assert len(late) == 1, "it is asked once, as the question lives on"
    assert "node 103 (client 3) takes part now" in lines


def test_a_transient_failure_is_asked_again_next_round(tmp_path):
    asked = []

    def answer(kind, client, message, usual):
        if kind == "query" and client == 3:
            asked.append(client)
            if len(asked) <= 2:
                raise RuntimeError("no route to host")
        return usual()

    text = recipe("devices.excluded = []\n").replace(f"per_round = {CLIENTS}", "per_round = 3")
    result, lines = served(grid_with(text, answer), text, tmp_path)
    assert len(asked) == 3
    assert sum("is left out: it failed: RuntimeError: no route to host" in line for line in lines) == 1
    assert "node 103 (client 3) takes part now" in lines
    assert len(result.metrics) == 3


def test_a_hung_device_costs_patience_and_not_the_deadline_and_is_passed_over(tmp_path):
    text, asked = recipe().replace("rounds = 3", "rounds = 6"), []

    def answer(kind, client, message, usual):
        if kind == "train" and client == 2:
            asked.append(message.content["task"]["round"])
            return None
        return usual()

    began = time.monotonic()
    result, lines = served(grid_with(text, answer), text, tmp_path, round_seconds=600.0)
    assert time.monotonic() - began < 60
    assert asked == [0, 2], "after one missed round it is passed over for one, after two for three"
    why = result.metrics[0]["absent"]["2"]
    assert why.startswith("no answer within 0.")
    assert why.endswith("it is connected, but too slow or its trainer hangs")
    assert any(
        "3 of 4 answered" in line and "waiting at most" in line and "client 2 (node 102)" in line for line in lines
    )
    assert "node 102 (client 2) has missed 1 in a row: it is passed over for 1 round" in lines
    assert "node 102 (client 2) has missed 2 in a row: it is passed over for 3 rounds" in lines
    assert "TTL" not in "".join(lines)
    assert same(dict(result.server.state), replayed(text, result.metrics))


@pytest.mark.parametrize(("code", "why"), [(3, "too slow or its trainer hangs"), (5, "its connection was lost")])
def test_what_flower_calls_ttl_is_named_for_what_it_is(tmp_path, code, why):
    def answer(kind, client, message, usual):
        if kind == "train" and client == 2:
            return Message(Error(code, "It may have expired due to its TTL"), reply_to=message)
        return usual()

    grid = grid_with(ONE, answer)
    if code == 5:
        usual, calls = grid.get_nodes, []

        def get_nodes():
            calls.append(0)
            return [node for node in usual() if len(calls) <= 2 or node.node_id != 102]

        grid.get_nodes = get_nodes
    result, lines = served(grid, ONE, tmp_path)
    assert result.metrics[0]["absent"]["2"].endswith(why)
    assert "TTL" not in "".join(lines)


def test_one_answer_and_a_straggler_is_drawn_like_everybody(tmp_path):
    text, asked = recipe().replace("rounds = 3", "rounds = 5"), []

    def answer(kind, client, message, usual):
        if kind == "train" and client == 2:
            asked.append(message.content["task"]["round"])
            if len(asked) == 1:
                return None
        return usual()

    result, _ = served(grid_with(text, answer), text, tmp_path)
    assert asked == [0, 2, 3, 4]
    assert same(dict(result.server.state), replayed(text, result.metrics))


def test_more_are_asked_than_needed_and_the_first_answers_are_enough(tmp_path):
    text = recipe().replace(f"per_round = {CLIENTS}", "per_round = 2")
    result, _ = served(grid_of(text), text, tmp_path, over_select=0.5)
    for line in result.metrics:
        assert len(line["cohort"]) == 3
        assert len(line["clients"]) == 2
        assert list(line["absent"].values()) == ["it was not waited for: 2 answers are enough"]
    assert same(dict(result.server.state), replayed(text, result.metrics))


def test_with_everybody_in_time_it_is_the_simulated_run(tmp_path):
    text = THREE_OF_FOUR
    result, _ = served(grid_of(text), text, tmp_path)
    assert same(dict(result.server.state), embedded(text))


def enrol(folder, **limits):
    """A folder of all clients, client 3 with limits."""
    folder.mkdir()
    for client in range(CLIENTS):
        own = limits if client == 3 else {}
        write_enrolled(folder, Enrolled(client, f"ecdsa-sha2-nistp384 AAAA{client}", **own))
    return str(folder)


def test_a_capacity_beyond_what_was_enrolled_is_cut_and_said(tmp_path):
    enrolled = enrol(tmp_path / "enrolled", max_capacity=0.25)
    nodes = {100 + client: {"client": client, "capacity": "1"} for client in range(CLIENTS)}
    result, lines = served(grid_of(ONE, nodes=nodes), ONE, tmp_path / "run", enrolled=enrolled)
    line = result.metrics[0]
    assert dict(zip(line["clients"], line["capacities"], strict=True)) == {0: 1.0, 1: 1.0, 2: 1.0, 3: 0.25}
    assert "node 103 (client 3) states the capacity 1, but is enrolled for at most 0.25: it is dealt 0.25" in lines


@pytest.mark.parametrize("claim", ["1e-9", 1e-9, 0.001])
def test_a_capacity_that_makes_no_sense_is_refused(tmp_path, claim):
    text = THREE_OF_FOUR.replace("rounds = 3", "rounds = 1")
    nodes = {100 + client: {"client": client} for client in range(3)} | {103: {"client": 3, "capacity": claim}}
    result, lines = served(grid_of(text, nodes=nodes), text, tmp_path)
    assert sorted(result.metrics[0]["clients"]) == [0, 1, 2]
    assert any(line.startswith("node 103 (client 3) is left out: ") and "capacity" in line for line in lines)


def test_who_is_not_enrolled_or_no_longer_takes_no_part(tmp_path):
    folder = tmp_path / "enrolled"
    enrolled = enrol(folder)
    (folder / "client-1.json").unlink()
    text, lines = recipe().replace(f"per_round = {CLIENTS}", "per_round = 3"), []

    def revoke(line):
        if line["round"] == 1:
            (folder / "client-2.json").unlink()

    deployment = RunConfig(out=str(tmp_path / "run"), enrolled=enrolled, **QUICK)
    result = serve(grid_of(text), text, deployment, on_round=revoke, log=lines.append)
    assert [sorted(line["clients"]) for line in result.metrics] == [[0, 2, 3], [0, 3], [0, 3]]
    assert "node 101 (client 1) is left out: client 1 is not enrolled" in lines
    assert "node 102 (client 2) is left out: client 2 is not enrolled" in lines


WEIGHTED = 'server.weighting = "samples"\n'


def test_a_claimed_weight_is_bounded_by_the_clients_own_samples(tmp_path):
    """The server knows how the recipe shares its data; 1,000,000 samples were once accepted."""
    text = ONE + WEIGHTED
    result, _ = served(grid_of(text, spoil=spoiled(set_fact("weight", 1e6))), text, tmp_path)
    assert "its weight 1e+06 is not between 1 and" in result.metrics[0]["absent"]["2"]


@pytest.mark.parametrize(("claim", "fine"), [(40.0, True), (41.0, False)])
def test_where_only_the_device_knows_its_samples_enrolment_bounds_the_claim(tmp_path, monkeypatch, claim, fine):
    from test_flower import OWN_DATA

    (tmp_path / "own_data_too.py").write_text(OWN_DATA)
    monkeypatch.syspath_prepend(tmp_path)
    enrolled = enrol(tmp_path / "enrolled", max_samples=40)

    def spoil(client, reply):
        if client == 3:
            reply.content["answer"]["weight"] = claim
        return reply

    text = ONE + WEIGHTED
    grid = grid_of(text, spoil=spoil, run_config={"load": "own_data_too:load"})
    result, _ = served(grid, text, tmp_path / "run", enrolled=enrolled, load="own_data_too:load")
    assert (3 in result.metrics[0]["clients"]) == fine
    if not fine:
        assert "its weight 41 is not between 1 and 40" in result.metrics[0]["absent"]["3"]


EVIL = "x\nround 9: all is well\r\x1b[31m\x1b]0;title\x07\u202e\u2028"


def evil_reason(kind, client, message, usual):
    if kind == "train" and client == 2:
        return Message(Error(2, EVIL), reply_to=message)
    return usual()


def evil_tensor(kind, client, message, usual):
    reply = usual()
    if kind == "train" and client == 2:
        arrays = dict(reply.content["arrays"]) | {EVIL: Array("float32", (1,), "fedwidth.raw", bytes(4))}
        reply.content["arrays"] = ArrayRecord(arrays)
    return reply


def evil_dtype(kind, client, message, usual):
    reply = usual()
    if kind == "train" and client == 2:
        arrays = dict(reply.content["arrays"])
        name = next(iter(arrays))
        arrays[name] = Array(EVIL, arrays[name].shape, EVIL, arrays[name].data)
        reply.content["arrays"] = ArrayRecord(arrays)
    return reply


def evil_fact(kind, client, message, usual):
    reply = usual()
    if kind == "train" and client == 2:
        reply.content["answer"]["index"] = EVIL
    return reply


def evil_introduction(kind, client, message, usual):
    if kind == "query" and client == 2:
        return Message(
            RecordDict({"node": ConfigRecord({"client": 2, "capacity": EVIL, "memory": EVIL})}), reply_to=message
        )
    return usual()


@pytest.mark.parametrize("attack", [evil_reason, evil_tensor, evil_dtype, evil_fact, evil_introduction])
def test_what_devices_say_cannot_forge_a_log(tmp_path, attack):
    grid = grid_with(ONE, attack)
    grid.get_nodes = lambda: [NodeInfo(node_id=id, name=EVIL if id == 102 else "") for id in grid.get_node_ids()]
    _, lines = served(grid, ONE.replace(f"per_round = {CLIENTS}", "per_round = 3"), tmp_path)
    said = [line for line in lines if "is left out" in line]
    assert said or attack is evil_introduction
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith("round 9") for line in lines)
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        assert all(why.isprintable() for why in json.loads(line).get("absent", {}).values())


def test_printable_text_stays_as_it_is():
    assert printable("Gerät 3: 10 % weniger – 文") == "Gerät 3: 10 % weniger – 文"
    assert printable("\ud800\x00\u200b") == "\\ud800\\x00\\u200b"


def flipped(times):
    """Client 2 sends the opposite of its change, so many times."""

    def answer(kind, client, message, usual):
        reply = usual()
        if kind == "train" and client == 2:
            sent, arrays = message.content["arrays"], {}
            for name, array in reply.content["arrays"].items():
                before, after = (torch.frombuffer(bytearray(a.data), dtype=torch.float32) for a in (sent[name], array))
                data = (before - times * (after - before)).numpy().tobytes()
                arrays[name] = Array(array.dtype, array.shape, array.stype, data)
            reply.content["arrays"] = ArrayRecord(arrays)
        return reply

    return answer


EIGHT = 8
SIX = recipe().replace("rounds = 3", "rounds = 6").replace('"a1-c1"', '"a1"')
SIX = SIX.replace("data.clients = 4", "data.clients = 8").replace("per_round = 4", "per_round = 8")
SIX = SIX.replace('"labels"', '"iid"').replace("{ per_client = 5 }", "{}")
MANY = {100 + client: {"client": client} for client in range(EIGHT)}


@pytest.mark.parametrize("times", [1.0, 20.0])
def test_a_sign_flip_is_left_out_struck_quarantined_and_said(tmp_path, times):
    result, lines = served(grid_with(SIX, flipped(times), MANY), SIX, tmp_path)
    assert [2 in line["clients"] for line in result.metrics] == [False] * 6
    assert all("2" in line["absent"] for line in result.metrics[:3])
    assert "points away from those of the others" in result.metrics[0]["absent"]["2"]
    assert result.metrics[2]["quarantined"] == {"2": 13}
    assert any(line.startswith("round 3: client 2 is in quarantine until round 13") for line in lines)
    assert all("2" not in line.get("absent", {}) for line in result.metrics[3:]), "it is not even drawn"


def test_quarantine_is_kept_over_a_kill(tmp_path):
    class Killed(BaseException):
        pass

    def die(line):
        if line["round"] == 4:
            raise Killed

    deployment = RunConfig(out=str(tmp_path), **QUICK)
    with pytest.raises(Killed):
        serve(grid_with(SIX, flipped(1.0), MANY), SIX, deployment, on_round=die, log=lambda _: None)
    asked = []

    def answer(kind, client, message, usual):
        asked.append((kind, client))
        return usual()

    result = serve(grid_with(SIX, answer, MANY), SIX, deployment, log=lambda _: None)
    assert ("train", 2) not in asked
    assert result.server.quarantine.until == {2: 13}


def test_a_recipe_with_budgets_goes_on_where_it_was_stopped(tmp_path):
    """Its folder has the capacities that budgets came to, which the recipe does not name."""
    text = recipe().replace('devices.capacities = "a1-c1"', "devices.budgets = BUDGETS")
    text = text.replace("BUDGETS", "{ phone = { upload = '1kB' }, board = { upload = '1MB' } }")

    class Killed(BaseException):
        pass

    def die(line):
        if line["round"] == 2:
            raise Killed

    with pytest.raises(Killed):
        serve(grid_of(text), text, RunConfig(out=str(tmp_path / "a"), **QUICK), on_round=die, log=lambda _: None)
    resumed, _ = served(grid_of(text), text, tmp_path / "a")
    whole, _ = served(grid_of(text), text, tmp_path / "b")
    assert len(set(whole.metrics[0]["capacities"])) > 1
    assert same(resumed.server.state, whole.server.state)
    with pytest.raises(StateError, match="rounds is 3 there and 4 now"):
        served(grid_of(text), text.replace("rounds = 3", "rounds = 4"), tmp_path / "a")


def test_an_alarm_is_said(tmp_path):
    from fedwidth.deployment.server import remarks

    said = list(remarks({"alarm": 12.5, "global_accuracy": 0.7}))
    assert said == [
        "ALARM: accuracy 70.00 % is 12.5 points below the best of the last evaluations; fedwidth deploy rollback goes"
        " back to an earlier checkpoint"
    ]


@pytest.mark.parametrize(("key", "value"), [("quorum", 0.0), ("quorum", 1.5), ("screen", 1), ("clip", True)])
def test_wrong_keys_of_the_run_config_are_refused(key, value):
    with pytest.raises(ValueError, match=f"run config key '{key}' must be"):
        RunConfig.of({key: value})


def test_what_the_recipe_says_comes_before_what_deployments_add():
    from fedwidth.config.read import read_settings

    own = RunConfig().with_defaults(read_settings(recipe("server.clip = 7.0\nevaluation.alarm = 3.0\n")).main)
    assert (own.server.clip, own.evaluation.alarm, own.checkpoint_history, own.server.screen) == (7.0, 3.0, 5, True)
    off = RunConfig.of({"clip": 0.0, "screen": False, "alarm": 0, "history": 0}).with_defaults(
        read_settings(recipe()).main
    )
    assert (off.server.clip, off.server.screen, off.evaluation.alarm, off.checkpoint_history) == (0.0, False, 0.0, 0)


def test_a_task_that_could_not_be_sent_leaves_its_client_out_and_the_round_goes_on(tmp_path):
    text = recipe()
    grid = grid_with(text, lambda kind, client, message, usual: usual())
    push = grid.push_messages

    def refused(messages):
        """Flower gives no name to a message for a node that it no longer knows."""
        messages = list(messages)
        names = list(push(messages))
        return [
            "" if m.metadata.dst_node_id == 101 and m.metadata.message_type == "train" else name
            for m, name in zip(messages, names, strict=True)
        ]

    grid.push_messages = refused
    result, lines = served(grid, text, tmp_path, clip=0.0, screen=False)
    assert all(1 not in line["clients"] for line in result.metrics)
    assert any("client 1 (node 101) is left out: it could not be sent its task" in line for line in lines)


def test_an_alarm_by_validation_needs_no_test_set():
    from fedwidth.deployment.server import remarks

    (said,) = remarks({"alarm": 12.5, "validation_accuracy": 0.7})
    assert said.startswith("ALARM: accuracy 70.00 % is 12.5 points below")


def test_nobody_but_clients_in_quarantine_is_no_round(tmp_path):
    text = recipe()
    grid = grid_with(text, lambda kind, client, message, usual: usual())
    known = attendance.Attendance(grid, CLIENTS, lambda node, round: 1.0, seconds=0.3, log=lambda _: None)
    assert len(known.wait(CLIENTS, 1.0)) == CLIENTS
    known.quarantined = dict.fromkeys(range(CLIENTS), 5)
    with pytest.raises(ValueError, match=f"only 0 of 1 nodes came within 0.2 seconds, and {CLIENTS} in quarantine"):
        known.wait(1, 0.2, round=4)
    assert len(known.wait(1, 0.2, round=5)) == CLIENTS


def test_more_answers_than_a_round_takes_can_be_asked_for(tmp_path):
    text = recipe().replace(f"per_round = {CLIENTS}", "per_round = 2")
    result, _ = served(grid_with(text, lambda kind, client, message, usual: usual()), text, tmp_path, least_clients=3)
    assert all(len(line["clients"]) == 3 for line in result.metrics)
