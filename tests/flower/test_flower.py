"""The Flower engine over an in-process grid: equal to the embedded engine, and hard to lead astray."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from in_process import InProcessGrid

from fedwidth.config.read import read_settings
from fedwidth.core.cost import cost
from fedwidth.deployment.budgets import PROCESS_BYTES, budgets_to_capacity, bytes_beside
from fedwidth.deployment.node.client_app import client_app
from fedwidth.deployment.run_config import RunConfig
from fedwidth.deployment.server import LOCK, serve, shorten_failures
from fedwidth.errors import FedwidthError, OptionError
from fedwidth.experiment import Experiment
from fedwidth.run.checkpoint import rounds_done
from fedwidth.run.folder import locked
from small_runs import RECIPE, same

CLIENTS = 4
BASE = (
    RECIPE.replace("data.clients = 6", f"data.clients = {CLIENTS}")
    .replace("devices.per_round = 3", f"devices.per_round = {CLIENTS}")
    .replace('"a1-b1-c1"', '"a1-c1"')
)


def recipe(more: str = "") -> str:
    return BASE + more


def grid_of(text: str, *, nodes: dict[int, dict] | None = None, spoil=None, run_config=None) -> InProcessGrid:
    """A grid of one node per client; `spoil(client, reply)` may change what a node answers to a task."""
    app = client_app(text)

    def call(message, context):
        reply = app(message, context)
        if spoil and message.metadata.message_type == "train":
            return spoil(context.node_config["client"], reply) or reply
        return reply

    return InProcessGrid(call, nodes or {100 + c: {"client": c} for c in range(CLIENTS)}, run_config or {})


def embedded(text: str):
    """The state after the recipe's rounds on the serial engine, with what deployments add to its settings."""
    return Experiment(RunConfig().with_defaults(read_settings(text).main)).run().server.state


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("fedrolex", ""),
        ("heterofl", 'server.optimiser = "fedadam"\nserver.weighting = "samples"\n'),
        ("fedbrb", ""),
        ("fjord", ""),
        ("heterofl", "training.smoothing = 0.3\n"),
        ("fedminoccurances", ""),
        ("fedprox", ""),
        ("scaffold", ""),
        ("fedrolex", 'local.name = "scaffold"\nlocal.options = { option = "I" }\n'),
        ("fedrolex", 'local.name = "fjord"\n'),
        ("fedtile", ""),
        ("fedmosaic", ""),
        ("fedecover", ""),
        ("fedimportance", ""),
        ("own_method:METHOD", "training.momentum = 0.0\ntraining.clip = 0.0\n"),
        ("fedrolex", 'model.name = "cnn"\nmodel.options = { widths = [4, 6] }\n'),
    ],
)
def test_the_state_after_three_rounds_is_the_embedded_engines_bit_for_bit(tmp_path, method, more):
    text = recipe(f'method.name = "{method}"\n')
    if "model.name" in more:
        text = "\n".join(line for line in text.splitlines() if not line.startswith("model.")) + "\n"
    text += more
    result = serve(grid_of(text), text, RunConfig(out=str(tmp_path)))
    assert same(embedded(text), dict(result.server.state))


def spoiled(change):
    """Client 2's reply with `change(answer, arrays)` made to it, by returning new arrays or changing the answer."""

    def spoil(client, reply):
        if client == 2:
            answer, arrays = reply.content["answer"], dict(reply.content["arrays"])
            arrays = change(answer, arrays) or arrays
            reply.content["arrays"] = ArrayRecord(arrays)
        return reply

    return spoil


def replaced(arrays, values):
    """The first tensor's bytes replaced."""
    name = next(iter(arrays))
    old = arrays[name]
    tensor = torch.frombuffer(bytearray(old.data), dtype=torch.float32).clone()
    return arrays | {name: Array(old.dtype, old.shape, old.stype, values(tensor).numpy().tobytes())}


def wrong_shape(_answer, arrays):
    name = next(iter(arrays))
    old = arrays[name]
    return arrays | {name: Array(old.dtype, tuple(reversed(old.shape)), old.stype, old.data)}


def short_data(_answer, arrays):
    name = next(iter(arrays))
    old = arrays[name]
    return arrays | {name: Array(old.dtype, old.shape, old.stype, old.data[:-4])}


def other_dtype(_answer, arrays):
    name = next(iter(arrays))
    old = arrays[name]
    return arrays | {name: Array("float16", old.shape, old.stype, old.data)}


def set_fact(name, value):
    def change(answer, _arrays):
        answer[name] = value

    return change


HOSTILE = {
    "another round": (set_fact("round", 7), "it is for round 7"),
    "another client": (set_fact("client", 1), "it is for client 1"),
    "another index": (set_fact("index", "0" * 32), "it is for index"),
    "a guessed token": (set_fact("token", "0" * 32), "does not hold the token"),
    "NaN": (lambda _, a: replaced(a, lambda t: t * torch.nan), "not finite"),
    "infinity": (lambda _, a: replaced(a, lambda t: t + torch.inf), "not finite"),
    "huge values": (lambda _, a: replaced(a, lambda t: t * 1e6), "above the bound"),
    "wrong shape": (wrong_shape, "has shape"),
    "fewer bytes": (short_data, "bytes, not"),
    "another dtype": (other_dtype, "float16"),
    "a name too many": (lambda _, a: a | {"more": Array("float32", (1,), "fedwidth.raw", bytes(4))}, "unknown tensor"),
    "a name missing": (lambda _, a: dict(list(a.items())[1:]), "lacks tensor"),
    "megabytes of rubbish": (lambda _, a: a | {"x": Array("float32", (1,), "x", bytes(1 << 20))}, "more than"),
    "a heavy weight": (set_fact("weight", 1e9), "its weight"),
    "a weight that is text": (set_fact("weight", "1"), "its weight"),
    "labels nobody has": (set_fact("labels", [99]), "label outside"),
    "a label twice": (set_fact("labels", [1, 1]), "label twice"),
    "a loss that is not a number": (set_fact("loss", float("nan")), "its loss"),
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_answer_is_refused_named_and_does_not_stop_the_round(tmp_path, without_client_two, attack):
    change, why = HOSTILE[attack]
    text, lines = recipe().replace("rounds = 3", "rounds = 1"), []
    result = serve(grid_of(text, spoil=spoiled(change)), text, RunConfig(out=str(tmp_path)), log=lines.append)
    line = result.metrics[0]
    assert sorted(line["clients"]) == [0, 1, 3]
    assert why in line["absent"]["2"]
    assert any("client 2 (node 102) is left out" in text and why in text for text in lines)
    # The others count as if the client had never been asked.
    assert same(dict(result.server.state), without_client_two)


@pytest.fixture(scope="module")
def without_client_two(tmp_path_factory):
    """The state after one round in which client 2 says nothing."""
    text = recipe().replace("rounds = 3", "rounds = 1")
    grid = grid_of(text, spoil=lambda client, reply: error_reply(reply) if client == 2 else reply)
    out = tmp_path_factory.mktemp("without")
    return dict(serve(grid, text, RunConfig(out=str(out)), log=lambda _: None).server.state)


def error_reply(reply):
    reply.__dict__["_content"] = RecordDict({"nothing": ConfigRecord({})})
    return reply


def test_a_failing_node_leaves_a_partial_aggregate_and_too_few_repeat_the_round(tmp_path):
    text, lines, calls = recipe(), [], []

    def fails_twice(client, reply):
        calls.append(client)
        if len(calls) <= 2 * CLIENTS and client != 0:
            raise RuntimeError("out of memory")
        return reply

    wanted = RunConfig(out=str(tmp_path), least_clients=2, attempts=4)
    result = serve(grid_of(text, spoil=fails_twice), text, wanted, log=lines.append)
    assert sum("it is repeated" in line for line in lines) == 2
    assert all("absent" not in line for line in result.metrics)
    assert same(embedded(text), dict(result.server.state))


def test_a_round_that_never_has_enough_answers_ends_the_run_and_keeps_the_checkpoint(tmp_path):
    text = recipe()

    def dies_in_round_three(client, reply):
        if reply.content["answer"]["round"] == 2 and client != 0:
            raise RuntimeError("gone")
        return reply

    wanted = RunConfig(out=str(tmp_path), least_clients=2, attempts=2)
    with pytest.raises(FedwidthError, match="round 3 has 1 answers, but needs at least 2"):
        serve(grid_of(text, spoil=dies_in_round_three), text, wanted, log=lambda _: None)
    assert [json.loads(x)["round"] for x in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [1, 2]
    resumed = serve(grid_of(text), text, wanted, log=lambda _: None)
    assert same(embedded(text), dict(resumed.server.state))


@pytest.mark.parametrize("more", ["", "checkpoint_every = 2\n", "checkpoint_seconds = 1e9\n"])
def test_every_round_is_saved_when_it_ends_whatever_the_recipe_says(more, tmp_path):
    text, found = recipe(more), []
    wanted = RunConfig(out=str(tmp_path))
    serve(grid_of(text), text, wanted, on_round=lambda _: found.append(rounds_done(tmp_path)), log=lambda _: None)
    assert found == [1, 2, 3]


def test_a_killed_server_resumes_in_a_new_run_with_the_same_bits(tmp_path):
    text = recipe()

    class Killed(BaseException):
        pass

    def die(line):
        if line["round"] == 2:
            raise Killed

    with pytest.raises(Killed):
        serve(grid_of(text), text, RunConfig(out=str(tmp_path)), on_round=die, log=lambda _: None)
    resumed = serve(grid_of(text), text, RunConfig(out=str(tmp_path)), log=lambda _: None)
    assert [line["round"] for line in resumed.metrics] == [1, 2, 3]
    assert same(embedded(text), dict(resumed.server.state))


def test_a_node_gets_its_own_sub_model_and_nothing_else(tmp_path):
    text, seen = recipe(), {}
    app = client_app(text)

    def watch(message, context):
        if message.metadata.message_type == "train":
            arrays = message.content["arrays"]
            seen[context.node_config["client"]] = {name: tuple(array.shape) for name, array in arrays.items()}
        return app(message, context)

    nodes = {1: {"client": 0, "capacity": 1.0}, 2: {"client": 1, "capacity": "1/4"}}
    text_two = text.replace(f"devices.per_round = {CLIENTS}", "devices.per_round = 2")
    serve(InProcessGrid(watch, nodes, {}), text_two, RunConfig(out=str(tmp_path)), log=lambda _: None)
    whole, quarter = seen[0], seen[1]
    hidden = [shape for name, shape in whole.items() if shape[:1] == (8,)]
    assert hidden
    assert [shape for shape in quarter.values() if shape[:1] == (2,)]
    assert not [shape for shape in quarter.values() if 8 in shape]


def test_a_budget_becomes_the_largest_capacity_it_pays_for(tmp_path):
    text = recipe().replace('"a1-c1"', '"a1-b1-c1"')
    experiment = Experiment(read_settings(text).main)
    full, half, quarter = cost(experiment.model, experiment.plan, experiment.data.example(), [1, 0.5, 0.25])
    nodes = {
        1: {"client": 0, "bytes": 2 * int(half.bytes) + bytes_beside(experiment)[1]},
        2: {"client": 1, "operations": 3 * 10 * int(quarter.macs), "samples": 10},
        3: {"client": 2, "memory": PROCESS_BYTES + int(full.memory(batch=64, moments=1))},
        4: {"client": 3, "capacity": "1/2"},
    }
    result = serve(grid_of(text, nodes=nodes), text, RunConfig(out=str(tmp_path)), log=lambda _: None)
    line = result.metrics[0]
    assert dict(zip(line["clients"], line["capacities"], strict=True)) == {0: 0.5, 1: 0.25, 2: 1.0, 3: 0.5}


def test_memory_is_what_all_of_a_devices_processes_may_take():
    """With one byte less than the processes and a sub-model need together, the next smaller one is trained."""
    text = recipe().replace('"a1-c1"', '"a1-b1-c1"').replace("hidden = [8]", "hidden = [512]")
    experiment = Experiment(read_settings(text).main)
    batch = experiment.settings.training.batch_size
    for capacity, smaller in ((1.0, 0.5), (0.5, 0.25)):
        (found,) = cost(experiment.model, experiment.plan, experiment.data.example(), [capacity])
        needed = PROCESS_BYTES + found.memory(batch=batch, moments=1)
        assert budgets_to_capacity({"memory": needed}, experiment, passes=1.0) == capacity
        assert budgets_to_capacity({"memory": needed - 1}, experiment, passes=1.0) == smaller


OWN_DATA = """
import torch
from fedwidth.data import from_tensors

asked = []

def load(settings, client):
    asked.append(client)
    generator = torch.Generator().manual_seed(client if client is not None else 99)
    number = 20 if client is None else 10 + client
    x, y = torch.rand(number, 6, generator=generator), torch.arange(number) % 3
    return from_tensors(x, y, x, y, classes=3)

def nothing(settings, client):
    return None
"""


def test_data_may_be_the_devices_own(tmp_path, monkeypatch):
    (tmp_path / "device_data.py").write_text(OWN_DATA)
    monkeypatch.syspath_prepend(tmp_path)
    text = recipe('server.weighting = "samples"\n')
    grid = grid_of(text, run_config={"load": "device_data:load"})
    deployment = RunConfig(out=str(tmp_path / "run"), load="device_data:load")
    result = serve(grid, text, deployment, log=lambda _: None)
    assert [sorted(line["clients"]) for line in result.metrics] == [[0, 1, 2, 3]] * 3
    import device_data

    assert device_data.asked[0] is None
    assert set(device_data.asked[1:]) == {0, 1, 2, 3}
    for wrong, why in (
        ("device_data:nothing", "must return"),
        ("device_data:no", "must be package"),
        ("no", "must be"),
    ):
        with pytest.raises(OptionError, match=why):
            serve(grid, text, RunConfig(out=str(tmp_path / "other"), load=wrong), log=lambda _: None)


@pytest.mark.parametrize("change", ["data.validation = 0.1", "data.public = 0.1", 'devices.correlate = "labels"'])
def test_what_needs_all_data_is_refused_where_it_is_the_devices_own(tmp_path, monkeypatch, change):
    (tmp_path / "own_data.py").write_text(OWN_DATA)
    monkeypatch.syspath_prepend(tmp_path)
    text = f"{change}\n{recipe()}"
    with pytest.raises(OptionError, match="needs data that the recipe names, but load gives each device its own"):
        serve(grid_of(text), text, RunConfig(out=str(tmp_path / "run"), load="own_data:load"), log=lambda _: None)


def test_real_devices_are_not_simulated(tmp_path):
    text = f"devices.dropout = 0.1\n{recipe()}"
    with pytest.raises(OptionError, match="are for simulated devices, and these are real"):
        serve(grid_of(text), text, RunConfig(out=str(tmp_path)), log=lambda _: None)


@pytest.mark.parametrize("name", ["fedhm", "dsfl", "fedet", "fedgkt"])
def test_parts_that_are_no_slices_are_refused_before_anyone_is_asked(tmp_path, name):
    text = recipe(f'method.name = "{name}"\n')
    with pytest.raises(OptionError, match="sends other parts than slices, which Flower's devices do not take"):
        serve(grid_of(text), text, RunConfig(out=str(tmp_path)), log=lambda _: None)


def test_validation_samples_and_sizes_by_labels_are_those_of_a_simulated_run(tmp_path):
    text = f'data.validation = 0.1\ndevices.correlate = "labels"\n{recipe()}'
    result = serve(grid_of(text), text, RunConfig(out=str(tmp_path)), log=lambda _: None)
    alone = Experiment(read_settings(text).main).run()
    assert same(result.server.state, alone.server.state)
    assert result.summary["validation_accuracy"] == alone.summary["validation_accuracy"]


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"client": 9}, "clients are numbered 0 to 3"),
        ({}, "clients are numbered"),
        ({"client": 1}, "which node 101 is already"),
        ({"client": 3, "capacity": 2.0}, "capacity must be above 0"),
        ({"client": 3, "bytes": 1}, "no capacity fits"),
        ({"client": 3, "memory": -5}, "not a number above 0"),
        ({"client": 3, "memory": PROCESS_BYTES}, "bytes of memory before they train, but the budget is"),
        ({"client": 3, "memory": PROCESS_BYTES + 100}, "but the budget is 100.0; a device's processes take"),
    ],
)
def test_a_node_that_is_no_client_is_left_out_and_named(tmp_path, config, why):
    text, lines = recipe().replace(f"per_round = {CLIENTS}", "per_round = 3").replace("rounds = 3", "rounds = 1"), []
    nodes = {100 + client: {"client": client} for client in range(3)} | {200: config}
    serve(grid_of(text, nodes=nodes), text, RunConfig(out=str(tmp_path)), log=lines.append)
    who = f"node 200 (client {config['client']})" if config else "node 200"
    assert any(line.startswith(f"{who} is left out") and why in line for line in lines)


def test_a_key_registered_for_one_client_cannot_be_another(tmp_path):
    text, lines = recipe().replace(f"per_round = {CLIENTS}", "per_round = 3").replace("rounds = 3", "rounds = 1"), []
    grid = grid_of(text)
    names = {100: "client-0", 101: "client-1", 102: "client-2", 103: "client-1"}
    grid.get_nodes = lambda: [NodeInfo(node_id=id, name=name) for id, name in names.items()]
    result = serve(grid, text, RunConfig(out=str(tmp_path)), log=lines.append)
    assert sorted(result.metrics[0]["clients"]) == [0, 1, 2]
    assert lines[1] == "node 103 (client-1) is left out: it says it is client 3, but is registered as client-1"


@pytest.mark.parametrize(
    ("config", "why"),
    [({"ouT": "x"}, "did you mean 'out'"), ({"least-clients": "2"}, "must be int"), ({"attempts": -1}, "at least 0")],
)
def test_a_wrong_run_config_is_refused(config, why):
    with pytest.raises(OptionError, match=why):
        RunConfig.of(config)


def test_a_folder_another_run_writes_to_is_refused_before_nodes_are_asked(tmp_path):
    lines = []
    with (
        locked(tmp_path, LOCK),
        pytest.raises(OptionError, match="another run is writing to"),
    ):
        serve(grid_of(recipe()), recipe(), RunConfig(out=str(tmp_path)), log=lines.append)
    assert lines == []


def test_what_stopped_a_run_is_one_line_in_flowers_log(caplog):
    """As Flower logs it: the exception with its traceback, then an exit code with a page of help."""
    log = logging.getLogger("test_flower.flwr")
    log.addFilter(shorten_failures())
    log.error("Exit Code: 1")
    for error in (OptionError("only 1 of 4\nnodes came"), KeyError("a bug")):
        try:
            raise error
        except Exception as raised:
            log.error("%s raised an exception", "ServerApp", exc_info=raised)
        log.error("Exit Code: 201\nAn unhandled exception occurred in the ServerApp.")
    said = [(record.getMessage(), record.exc_info is not None) for record in caplog.records]
    assert said[1] == ("the run failed: only 1 of 4 nodes came", False)
    assert said[2] == ("ServerApp raised an exception", True), "what nobody expected keeps its traceback"
    assert [message for message, _ in said if message.startswith("Exit Code")] == ["Exit Code: 1"]


def test_neither_the_library_nor_the_command_line_imports_flower():
    code = (
        "import sys, fedwidth, fedwidth.cli.entry, fedwidth.experiment, fedwidth.flower; print('flwr' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_a_client_process_imports_torch_only_to_train(tmp_path):
    package = tmp_path / "app"
    package.mkdir()
    import fedwidth.deployment.node as source

    for name in ("client_app.py", "refusals.py", "wire.py"):
        (package / name).write_text((Path(source.__file__).parent / name).read_text())
    (package / "__init__.py").write_text("")
    code = "import sys, app.client_app; print('torch' in sys.modules, 'fedwidth' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "False False\n", done.stderr


def test_bytes_are_counted_as_they_are_on_the_wire():
    """As `benchmarks/wire.py` measured them in a deployment: a model of 4 tensors and one of 23, both at 1/4."""
    for model, sub_model, measured in (
        ('model.name = "mlp"\nmodel.options = { hidden = [64] }\n', 4_840, 17_265 + 38_644),
        ('model.name = "cnn"\nmodel.options = { widths = [32, 64, 64] }\n', 15_272, 49_214 + 119_227),
    ):
        copies, beside = bytes_beside(Experiment(read_settings(model).main))
        assert copies == 2
        assert copies * sub_model + beside == pytest.approx(measured, rel=0.15)
    scaffold = Experiment(read_settings(recipe('method.name = "scaffold"\n')).main)
    assert bytes_beside(scaffold)[0] == 6, "down: model, control, own control; up: model, change, own control"
