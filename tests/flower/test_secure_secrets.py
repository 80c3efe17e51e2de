"""What leaves a device with secure sums, and where its secrets are not (the notes' numbers 8, 24, 30, 31 and 32)."""

from __future__ import annotations

import base64
import io
import os
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from secure_nodes import kind_of, secure_nodes
from test_secure_rounds import BASE, ran

from fedwidth.config.read import read_settings
from fedwidth.deployment.node.client_app import STYPE
from fedwidth.deployment.node.training import train_here
from fedwidth.errors import SecureError
from fedwidth.secure import device as device_module
from fedwidth.secure import sharing
from fedwidth.training.client import Trainer


def test_30_no_reply_holds_anything_readable(tmp_path, monkeypatch):
    """Every reply of a run is looked at: numbers of the task, bytes of the protocol, and words that look random.

    The trained weights of every client are taken down as they are made, and are in none of the replies.
    """
    train, trained = Trainer.train, []

    def remember(self, *given):
        found = train(self, *given)
        trained.append({name: t.detach().numpy().copy() for name, t in found.update.sub.items()})
        return found

    monkeypatch.setattr(Trainer, "train", remember)
    with secure_nodes(tmp_path / "nodes", BASE, 6) as nodes:
        ran(nodes, tmp_path)
    assert len(trained) == 18
    words = []
    for client, message, reply in nodes.seen:
        configs, arrays = reply.content.config_records, reply.content.array_records
        kind = kind_of(message)
        if kind == "introduce":
            assert set(configs["node"]) == {"client", "key", "signature"}
            continue
        assert set(reply.content) == {"answer", "arrays"}
        if kind == "train":
            sent = message.content.config_records["task"]
            expected = {name: sent[name] for name in ("token", "round", "client", "attempt")}
            assert dict(configs["answer"]) == expected
            assert set(arrays["arrays"]) == {"masked"}
            words.append(np.frombuffer(arrays["arrays"]["masked"].data, np.uint32))
        else:
            assert dict(configs["answer"]) == {}
            names = {"open": "answer", "share": "bundle"}
            assert set(arrays["arrays"]) == {names[part] for part in kind.split()}
        everything = b"".join(array.data for array in arrays["arrays"].values())
        for update in trained:
            for tensor in update.values():
                assert tensor.size < 4 or tensor.tobytes() not in everything, f"client {client} sent a tensor"
    bits = np.unpackbits(np.concatenate(words).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 6 * 0.5 / np.sqrt(bits.size), "as many ones as zeros, within six deviations"
    ordinary = np.concatenate(words) + np.uint32(2**20)  # changes without masks would be near 0, from both sides
    assert (ordinary < 2**21).mean() < 0.01


def test_31_secrets_are_in_no_log_file_state_or_message_of_an_error(tmp_path, monkeypatch, caplog):
    """All that devices draw at random is taken down, and every share; then everything else is searched for it.

    Clients fail at every stage, so that there are errors.
    """
    drawn: set[bytes] = set()
    urandom, split = os.urandom, sharing.split

    def draw(length):
        found = urandom(length)
        drawn.add(found)
        return found

    def shared(secret, points, needed):
        found = split(secret, points, needed)
        drawn.update(found.values())
        return found

    monkeypatch.setattr(device_module.os, "urandom", draw)
    monkeypatch.setattr(device_module, "split", shared)
    lines: list[str] = []
    said = io.StringIO()
    with (
        redirect_stdout(said),
        redirect_stderr(said),
        caplog.at_level("DEBUG"),
        secure_nodes(tmp_path / "nodes", BASE.replace("rounds = 3", "rounds = 5"), 6) as nodes,
    ):
        failing = iter(["train", "open share", "share"])
        following = [next(failing)]

        def before(client, message):
            if following and client == 4 and kind_of(message) == following[0]:
                following[:] = [stage for stage in [next(failing, None)] if stage]
                raise RuntimeError(f"killed {nodes.residents[4]!r} {vars(nodes.residents[4].secure_sums)!r}")

        nodes.before = before
        ran(nodes, tmp_path, lines.append)
        keys = [resident.secure_sums._device._private.private_bytes_raw() for resident in nodes.residents.values()]
        states = [repr(dict(context.state)) for context in nodes.grid.contexts.values()]
    long = [secret for secret in drawn if len(secret) >= 16]
    assert len(long) > 500
    secrets = {form for secret in (*long, *keys) for form in (secret, secret.hex().encode(), base64.b64encode(secret))}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    places = {str(path.relative_to(tmp_path)): path.read_bytes() for path in files}
    places |= {"log": "\n".join(lines).encode(), "output": said.getvalue().encode(), "flower": caplog.text.encode()}
    places |= {f"state {number}": state.encode() for number, state in enumerate(states)}
    assert states == ["{}"] * 6
    assert {"run/checkpoint.safetensors", "run/opened.jsonl", "nodes/client-0/opened.json"} <= places.keys()
    for name, content in places.items():
        found = [secret for secret in secrets if secret in content]
        assert not found, f"{name} holds a secret"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda words: words[:-4], "has not"),
        (lambda words: words + bytes(4), "has not"),
        (lambda words: words + bytes(200_000), "its answer has"),
    ],
)
def test_32_words_that_are_too_few_or_too_many_are_refused_unread(tmp_path, change, why):
    with secure_nodes(tmp_path / "nodes", BASE.replace("rounds = 3", "rounds = 1"), 6) as nodes:

        def spoil(client, message, reply):
            if client == 3 and kind_of(message) == "train":
                data = change(reply.content["arrays"]["masked"].data)
                array = Array("uint32", (len(data) // 4,), STYPE, data)
                reply.content["arrays"] = ArrayRecord({"masked": array})
            return reply

        nodes.spoil, lines = spoil, []
        result = ran(nodes, tmp_path, lines.append)
    assert 3 not in result.metrics[0]["clients"]
    assert why in result.metrics[0]["absent"]["3"]


@pytest.mark.parametrize("change", [{"token": "another"}, {"round": 7}, {"client": 2}, {"attempt": 1}, {"loss": 0.5}])
def test_32_answers_that_say_something_else_are_refused(tmp_path, change):
    with secure_nodes(tmp_path / "nodes", BASE.replace("rounds = 3", "rounds = 1"), 6) as nodes:

        def spoil(client, message, reply):
            if client == 3 and kind_of(message) == "train":
                reply.content["answer"] = ConfigRecord({**reply.content["answer"], **change})
            return reply

        nodes.spoil = spoil
        result = ran(nodes, tmp_path)
    assert "3" in result.metrics[0]["absent"]


def test_24_what_was_opened_is_not_opened_again_nor_with_other_survivors(tmp_path):
    """A server that sends its last question once more, or with other survivors, is told why not and nothing else."""
    with secure_nodes(tmp_path / "nodes", BASE, 6) as nodes:
        ran(nodes, tmp_path)
        asked = [message for client, message, _ in nodes.seen if client == 0 and "open" in kind_of(message)]
        for message in asked:
            facts = dict(message.content.config_records["secure"])
            for alive in (bytes([0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0]), bytes([0, 0, 1, 0, 2, 0, 3, 0, 4, 0])):
                arrays = ArrayRecord({"open": Array("uint8", (len(alive),), STYPE, alive)})
                again = Message(
                    RecordDict({"secure": ConfigRecord(facts), "arrays": arrays}), 100, "query.secure", ttl=60.0
                )
                (name,) = nodes.grid.push_messages([again])
                (reply,) = nodes.grid.pull_messages([name])
                assert dict(reply.content["arrays"]) == {}
                assert "holds nothing of round" in reply.content["answer"]["open_error"]


def test_a_device_trains_nothing_in_the_clear_for_a_secure_recipe():
    """Whatever a server sends: the recipe is the device's own."""
    assert read_settings(BASE).main.secure.enabled
    with pytest.raises(SecureError, match="secure sums need the resident trainer"):
        train_here({"recipe": BASE, "load": "", "client": 0}, {})


def test_a_server_that_asks_for_a_plain_task_gets_none(tmp_path):
    """A task without letters, of a run that was never introduced, of another stage: no tensor comes back."""
    with secure_nodes(tmp_path / "nodes", BASE, 6) as nodes:
        ran(nodes, tmp_path)
        task = next(message for client, message, _ in nodes.seen if client == 0 and kind_of(message) == "train")
        facts, arrays = dict(task.content["task"]), dict(task.content["arrays"])
        plain = {name: array for name, array in arrays.items() if not name.startswith("secure/")}
        for changed in (facts, {**facts, "run": "00" * 16}, {**facts, "stage": "introduce"}, {**facts, "round": 9}):
            content = RecordDict({"task": ConfigRecord(changed), "arrays": ArrayRecord(plain)})
            (name,) = nodes.grid.push_messages([Message(content, 100, "train", ttl=60.0)])
            (reply,) = nodes.grid.pull_messages([name])
            assert reply.has_error()
