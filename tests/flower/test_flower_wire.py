"""The resident trainer's socket, the blocks on it, bytes on the wire, and the guard in front of the SuperLink."""

from __future__ import annotations

import asyncio
import socket
import stat
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.superlink.grid import http_grid
from hypothesis import given, settings
from hypothesis import strategies as st
from in_process import InProcessGrid
from safetensors.torch import load
from test_flower import BASE, grid_of, recipe

from fedwidth.core.tensor_bytes import TensorBytes
from fedwidth.deployment.access.guard import KEY, Guard
from fedwidth.deployment.attendance import Attendance
from fedwidth.deployment.exchange import error_of
from fedwidth.deployment.node import trainer
from fedwidth.deployment.node.client_app import client_app, train_block
from fedwidth.deployment.node.training import trainer_of
from fedwidth.deployment.node.wire import CODES, pack, receive, send, unpack
from fedwidth.deployment.reply_bounds import bound_replies
from fedwidth.deployment.run_config import RunConfig
from fedwidth.deployment.server import serve
from fedwidth.errors import OptionError


@given(st.sampled_from(sorted(CODES)), st.lists(st.integers(0, 4), max_size=3), st.integers(0, 2**32))
@settings(deadline=None, max_examples=40)
def test_a_tensor_comes_back_as_it_went(dtype, shape, seed):
    kind = getattr(torch, dtype)
    tensor = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)).to(kind)
    facts, tensors = unpack(pack({"text": "ü", "list": [1, 2]}, {"a.b": TensorBytes.of(tensor, copy=True)}))
    assert facts == {"text": "ü", "list": [1, 2]}
    assert TensorBytes(*tensors["a.b"]).tensor(copy=True).dtype == kind
    assert torch.equal(TensorBytes(*tensors["a.b"]).tensor(copy=True), tensor)


def test_a_block_is_a_safetensors_file():
    tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    assert torch.equal(load(pack({}, {"w": TensorBytes.of(tensor, copy=True)}))["w"], tensor)


@pytest.mark.parametrize("cut", [4, 40, -1])
def test_half_a_block_is_refused(cut):
    block = pack({}, {"w": ("float32", (2,), bytes(8))})
    with pytest.raises(ValueError):
        unpack(block[:cut])


def test_the_resident_trainer_answers_as_training_here_does_and_survives_rubbish(tmp_path):
    path = tmp_path / "t.sock"
    listener = trainer.listen(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    threading.Thread(target=trainer.serve, args=[listener], daemon=True).start()
    for rubbish in (b"", b"\xff" * 8, (5).to_bytes(8, "little") + b"hello"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(rubbish)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        send(connection, pack({"recipe": "rounds = 'x'", "load": "", "client": 0}, {}))
        assert "rounds must be" in unpack(receive(connection))[0]["error"]
    text = recipe()
    nodes = {c: {"client": c, "trainer": str(path)} for c in range(4)}
    through = serve(grid_of(text, nodes=nodes), text, RunConfig(out=str(tmp_path / "a")), log=lambda _: None)
    here = serve(grid_of(text), text, RunConfig(out=str(tmp_path / "b")), log=lambda _: None)
    assert all(torch.equal(through.server.state[name], here.server.state[name]) for name in here.server.state)
    with pytest.raises(OptionError, match="another trainer listens"):
        trainer.listen(path)


def test_a_trainer_that_is_gone_is_done_without(tmp_path, capsys):
    text, facts = recipe(), {}
    app = client_app(text)

    def keep(message, context):
        if message.metadata.message_type == "train":
            facts.update(message.content["task"], recipe=text, load="")
            facts["arrays"] = {n: (a.dtype, tuple(a.shape), a.data) for n, a in message.content["arrays"].items()}
        return app(message, context)

    grid = grid_of(text)
    grid.app = keep
    serve(grid, text, RunConfig(out=str(tmp_path)), log=lambda _: None)
    arrays = facts.pop("arrays")
    answer, trained = train_block(facts, arrays, str(tmp_path / "nobody.sock"))
    assert answer["client"] == facts["client"]
    assert set(trained) == set(arrays)
    assert "no resident trainer" in capsys.readouterr().out


def test_the_trainer_process_says_what_is_wrong(tmp_path):
    command = [sys.executable, "-m", "fedwidth.deployment.node.trainer", "--socket", str(tmp_path / ("x" * 200))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: the socket's path has")


def test_a_node_never_holds_the_values_of_the_global_model():
    text = "\n".join(line for line in recipe().splitlines() if not line.startswith("model.")) + '\nmodel.name = "cnn"'
    trainer = trainer_of(text, "", 0)
    assert all(tensor.is_meta for tensor in trainer.model.parameters())
    whole = trainer_of(text, "", 0, light=False)
    assert not any(tensor.is_meta for tensor in whole.model.parameters())
    assert trainer.plan.axes == whole.plan.axes
    assert trainer.channels_last == whole.channels_last
    small = trainer.skeleton(trainer.method.select(trainer.plan, capacity=0.25))
    assert not any(tensor.is_meta for tensor in small.parameters())


def wire_bytes(message: Message) -> int:
    """What a message's parts take: Flower sends each part (record, array, chunk of 5 MiB) as one object."""
    return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())


@pytest.mark.parametrize("capacity", ["1", "1/2", "1/4"])
def test_bytes_on_the_wire_are_the_sub_model_and_a_small_overhead(tmp_path, capacity):
    """Down and up: the tensors' bytes, at most 400 more for each tensor and 800 for the message."""
    text = BASE.replace("hidden = [8]", "hidden = [256]").replace("rounds = 3", "rounds = 1")
    app, sizes = client_app(text), []

    def measure(message, context):
        reply = app(message, context)
        if message.metadata.message_type == "train":
            arrays = message.content["arrays"]
            tensors = sum(len(array.data) for array in arrays.values())
            sizes.append((tensors, len(arrays), wire_bytes(message), wire_bytes(reply)))
        return reply

    grid = grid_of(text, nodes={c: {"client": c, "capacity": capacity} for c in range(4)})
    grid.app = measure
    result = serve(grid, text, RunConfig(out=str(tmp_path)), log=lambda _: None)
    tensors, number, down, up = sizes[0]
    assert tensors * len(sizes) == result.metrics[0]["bytes_down"]
    print(f"capacity {capacity}: {tensors} bytes, {number} tensors; down {down - tensors}, up {up - tensors} more")
    for sent in (down, up):
        assert tensors < sent <= tensors + 400 * number + 800


class Store:
    """A runtime client that serves replies from memory, as a SuperLink would."""

    def __init__(self, replies: list[Message]) -> None:
        self.replies, self.pulled, self.lists = replies, 0, 0
        self._client = SimpleNamespace(event_hooks={"response": []})
        self.parts = {}
        for reply in replies:
            reply.metadata.__dict__["_message_id"] = reply.object_id
            self.parts |= {name: part.deflate() for name, part in get_all_nested_objects(reply).items()}

    def PullMessages(self, request):
        self.lists += 1
        there, self.replies = self.replies, []
        return PullAppMessagesResponse(
            messages_list=[http_grid.message_to_proto(http_grid.remove_content_from_message(reply)) for reply in there],
            message_object_trees=[get_object_tree(reply) for reply in there],
        )

    def PullObject(self, request):
        self.pulled += len(self.parts[request.object_id])
        found = self.parts[request.object_id]
        return PullObjectResponse(object_found=True, object_available=True, object_content=found)

    def ConfirmMessageReceived(self, request):
        pass


def test_a_huge_reply_is_not_pulled_and_replies_come_one_at_a_time():
    InProcessGrid(client_app(""), {}, {})  # sets the process's identity
    replies = []
    for number, size in enumerate((100, 30_000_000, 200)):
        asked = Message(RecordDict(), 7 + number, "train")
        asked.metadata.__dict__["_message_id"] = f"question {number}"
        data = torch.randint(0, 255, (size,), dtype=torch.uint8).numpy().tobytes()
        arrays = ArrayRecord({"w": Array("uint8", (size,), "fedwidth.raw", data)})
        replies.append(Message(RecordDict({"arrays": arrays}), reply_to=asked))
    grid, store = http_grid.HttpGrid(token="t", insecure=True), Store(replies)
    grid._client, grid._run = store, SimpleNamespace(run_id=1)
    bound_replies(grid, 100_000, seconds=60)
    got = {}
    for _ in range(3):
        (reply,) = grid.pull_messages([f"question {number}" for number in range(3)])
        got[reply.metadata.reply_to_message_id] = error_of(reply)
    assert got["question 0"] is None
    assert got["question 2"] is None
    assert got["question 1"] == "its answer is refused unread: it has more than 100,000 bytes"
    assert store.lists == 1
    assert store.pulled < 12_000_000, "of 30 MB no more than two parts of 5 MiB, pulled side by side"
    url, headers = SimpleNamespace(path="/v1/runtime/pull-object"), {"content-length": "2000000000"}
    answer = SimpleNamespace(request=SimpleNamespace(url=url), headers=headers, close=lambda: None)
    with pytest.raises(ObjectPullError, match="more than"):
        store._client.event_hooks["response"][0](answer)


def test_an_introduction_is_bounded_before_it_is_pulled():
    """A node that introduces itself with 30 MB is left out, and next to nothing of them reaches the ServerApp."""
    InProcessGrid(client_app(""), {}, {})
    asked = Message(RecordDict(), 7, "query")
    asked.metadata.__dict__["_message_id"] = "question"
    rubbish = torch.randint(0, 255, (30_000_000,), dtype=torch.uint8).numpy().tobytes()
    arrays = ArrayRecord({"w": Array("uint8", (len(rubbish),), "fedwidth.raw", rubbish)})
    said = RecordDict({"node": ConfigRecord({"client": 0}), "arrays": arrays})
    grid, store = http_grid.HttpGrid(token="t", insecure=True), Store([Message(said, reply_to=asked)])
    grid._client, grid._run = store, SimpleNamespace(run_id=1)
    grid.get_nodes = lambda: [NodeInfo(node_id=7, name="")]
    grid.push_messages = lambda _: ["question"]
    lines = []
    assert Attendance(grid, 4, lambda said, round: 1.0, log=lines.append).refresh() == {}
    assert lines == ["node 7 is left out: its answer is refused unread: it has more than 16,384 bytes"]
    assert store.pulled < 12_000_000, "no more than two chunks of 5 MiB, pulled side by side"


def test_parts_of_a_refused_reply_do_not_count_for_the_next():
    """Flower pulls parts side by side: one may still be on its way when the next reply is begun."""
    InProcessGrid(client_app(""), {}, {})
    replies = []
    for number, size in enumerate((9_000, 100)):
        asked = Message(RecordDict(), 7 + number, "train")
        asked.metadata.__dict__["_message_id"] = f"question {number}"
        arrays = ArrayRecord({"w": Array("uint8", (size,), "fedwidth.raw", bytes([number]) * size)})
        replies.append(Message(RecordDict({"arrays": arrays}), reply_to=asked))
    grid, store = http_grid.HttpGrid(token="t", insecure=True), Store(replies)
    first, second = (set(get_all_nested_objects(reply)) for reply in replies)
    grid._client, grid._run = store, SimpleNamespace(run_id=1)
    bound_replies(grid, 9_500, seconds=60)
    asked = PullAppMessagesRequest(message_ids=["question 0", "question 1"])
    late = max(first - second, key=lambda name: len(store.parts[name]))
    grid._client.PullMessages(asked)
    pull = store.PullObject

    def meanwhile(request):
        """While the first reply's part is on its way, the second reply is begun."""
        store.PullObject = pull
        grid._client.PullMessages(asked)
        return pull(request)

    store.PullObject = meanwhile
    grid._client.PullObject(PullObjectRequest(object_id=late))
    with pytest.raises(ObjectPullError):
        grid._client.PullObject(PullObjectRequest(object_id=late))
    for name in second:
        assert grid._client.PullObject(PullObjectRequest(object_id=name)).object_content == store.parts[name]


def call_guard(
    guard: Guard, *, path: str, client: str = "10.0.0.9", length: int | None = None, body: bytes = b"", key: bytes = b""
) -> int:
    """The status a request gets; 0 where the connection is cut."""
    statuses = []
    first, rest = {"body": body[:10], "more_body": True}, {"body": body[10:]}
    events = [{"type": "http.request", **part} for part in (first, rest)]

    async def receive_event():
        return events.pop(0)

    async def send_event(event):
        statuses.append(event.get("status"))

    headers = [(KEY, key)] + ([] if length is None else [(b"content-length", str(length).encode())])
    scope = {"type": "http", "path": path, "client": (client, 5), "headers": headers}
    asyncio.run(guard(scope, receive_event, send_event))
    return statuses[0] if statuses else 0


async def inner(_scope, receive_event, send_event):
    while True:
        event = await receive_event()
        if event["type"] == "http.disconnect":
            return
        if not event.get("more_body"):
            break
    await send_event({"type": "http.response.start", "status": 200})


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ({"path": "/v1/fleet/push-object", "client": "10.0.0.9", "length": 50, "body": b"x" * 50}, 200),
        ({"path": "/v1/fleet/push-object", "client": "10.0.0.9", "length": 2_000_000_000}, 413),
        ({"path": "/v1/fleet/push-object", "client": "10.0.0.9", "body": b"x" * 5000}, 0),
        ({"path": "/v1/control/register-node", "client": "10.0.0.9", "length": 50}, 403),
        ({"path": "/v1/control/start-run", "client": "127.0.0.1", "length": 5000}, 200),
        ({"path": "/v1/runtime/pull-messages", "client": "10.0.0.9"}, 403),
        ({"path": "/docs", "client": "10.0.0.9"}, 403),
        ({"path": "/health", "client": "10.0.0.9"}, 200),
    ],
)
def test_the_guard_lets_strangers_do_what_nodes_do_in_small_requests(request_, status):
    assert call_guard(Guard(inner, max_body=1000), **request_) == status


def test_the_guard_bounds_a_reply_made_of_many_parts_and_each_node_for_itself():
    guard = Guard(inner, max_body=1000, max_reply=2500)
    part = {"path": "/v1/fleet/push-object", "length": 1000, "body": b"x" * 1000}
    assert [call_guard(guard, key=b"one", **part) for _ in range(4)] == [200, 200, 413, 413]
    assert call_guard(guard, key=b"two", **part) == 200
    assert call_guard(guard, key=b"one", path="/v1/fleet/push-messages", length=10, body=b"x" * 10) == 200
    assert call_guard(guard, key=b"one", **part) == 200


def test_an_upload_that_stops_half_way_does_not_hold_up_the_round():
    InProcessGrid(client_app(""), {}, {})
    asked = Message(RecordDict(), 7, "train")
    asked.metadata.__dict__["_message_id"] = "question"
    arrays = ArrayRecord({"w": Array("uint8", (10,), "fedwidth.raw", bytes(10))})
    store = Store([Message(RecordDict({"arrays": arrays}), reply_to=asked)])
    store.PullObject = lambda request: PullObjectResponse(object_found=True, object_available=False)
    grid = http_grid.HttpGrid(token="t", insecure=True)
    grid._client, grid._run = store, SimpleNamespace(run_id=1)
    bound_replies(grid, 100_000, seconds=0)
    (reply,) = grid.pull_messages(["question"])
    assert error_of(reply) == "its upload stopped half-way"


def test_a_device_loads_its_data_as_the_signed_app_says(tmp_path):
    from fedwidth.deployment.node.refusals import check_load

    project = tmp_path / "pyproject.toml"
    check_load("anything:load", project)  # no app folder: whoever made the app gave it its recipe
    project.write_text('[tool.flwr.app.config]\nload = "mine:load"\n')
    check_load("mine:load", project)
    with pytest.raises(ValueError, match="wants to load data by 'os:system', but the app names 'mine:load'"):
        check_load("os:system", project)
