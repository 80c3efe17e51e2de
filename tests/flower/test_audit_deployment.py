"""The audit log of a real deployment: who joined, who was refused and why, rounds and bytes, and no secret. Minutes."""

from __future__ import annotations

import re
import ssl
import stat
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

from loopback import Loopback, wait_until
from test_flower import recipe

from fedwidth.deployment.access.keys import make_node_key
from fedwidth.deployment.folder.admission import revoke
from fedwidth.watching.audit import AuditLog, fingerprint

pytestmark = pytest.mark.slow

START = "/v1/control/start-run"
NOT_FINITE = '''

def spoiled(function):
    """Client 1 answers with values that are no numbers."""
    def answer(message, context):
        reply = function(message, context)
        if message.metadata.message_type == "train" and context.node_config["client"] == 1:
            arrays = dict(reply.content["arrays"])
            name, old = next(iter(arrays.items()))
            arrays[name] = Array(old.dtype, old.shape, old.stype, b"\\xff" * len(old.data))
            reply.content["arrays"] = ArrayRecord(arrays)
        return reply
    return answer


for key, function in list(app._registered_funcs.items()):
    app._registered_funcs[key] = spoiled(function)
'''


def command_without_a_signature(loop: Loopback) -> int:
    """The status that a stranger gets who asks the server to start a run."""
    context = ssl.create_default_context(cafile=str(loop.folder / "certificates" / "ca.pem"))
    request = urllib.request.Request(f"https://127.0.0.1:{loop.setup.port}{START}", data=b"", method="POST")
    try:
        with urllib.request.urlopen(request, context=context, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def secrets_of(loop: Loopback) -> set[str]:
    """Every line of every private key of the deployment, and the tokens of its apps."""
    keys = [path for path in loop.folder.rglob("*key") if path.is_file()]
    assert len(keys) >= 6, "of the authority, the server, the operator and three devices"
    lines = {line for path in keys for line in path.read_text(errors="replace").splitlines() if "--" not in line}
    tokens = {found[1] for words in loop.family().values() if (found := re.search(r"--token (\S+)", words))}
    assert tokens, "a run goes on"
    return {line for line in lines if len(line) > 20} | tokens


def started_by_fork(loop: Loopback, client: int) -> dict[str, str]:
    """The names of a device's processes, each with its command line."""
    return {Path(f"/proc/{process}/comm").read_text().strip(): words for process, words in loop.family(client).items()}


def test_the_log_says_who_joined_who_was_refused_and_what_rounds_took_and_no_secret(tmp_path):
    text = recipe().replace("data.clients = 4", "data.clients = 3").replace("per_round = 4", "per_round = 3")
    text = text.replace("rounds = 3", "rounds = 40").replace("evaluation.every = 2", "evaluation.every = 50")
    loop = Loopback(tmp_path / "d", text, nodes=3, capacities=("1", "1/4", "1/4"))
    log, seen = AuditLog(loop.folder / "audit.jsonl"), [b""]

    def grown() -> bytes:
        """The log as it is now, which begins with what it was before."""
        content = log.path.read_bytes()
        assert content.startswith(seen[-1]), "it is only ever appended to"
        seen.append(content)
        return content

    def lines(event: str) -> list[dict]:
        return [line for line in log.lines() if line["event"] == event]

    try:
        loop.superlink()
        loop.register()
        grown()
        for client in range(3):
            loop.node(client)
        loop.begin(text, "audited", more=NOT_FINITE)
        loop.run("least-clients=1")
        make_node_key(tmp_path / "stranger")
        port = str(loop.setup.node_port + 3)
        other = loop.node(
            0, name="stranger", **{"--auth-supernode-private-key": str(tmp_path / "stranger"), "--port": port}
        )
        assert command_without_a_signature(loop) == 403
        loop.wait_rounds(2)
        grown()
        assert other.wait(240) != 0
        hidden = secrets_of(loop)
        if Path("/proc/self/comm").exists():
            forks = started_by_fork(loop, 0)
            assert {"fedwidth-forks", "flower-superexe"} <= set(forks), forks
            assert not any("flower-superexec" in words or "flwr-clientapp" in words for words in forks.values())
        revoke(loop.folder, 2)
        rounds = len(loop.lines())
        wait_until(
            lambda: any(2 not in line["clients"] for line in loop.lines()[rounds:]), 240, lambda: loop.log("run")
        )
        loop.stop_run()
        metrics = loop.lines()
        loop.processes["superlink"].terminate()
        loop.processes["superlink"].wait(60)
        wait_until(lambda: lines("server stopped"), 30)
        content = grown().decode()
    finally:
        loop.close()

    assert log.check() == len(content.splitlines())
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600
    operator = fingerprint((loop.folder / "operator" / "key.pub").read_text())
    keys = [fingerprint((loop.folder / "nodes" / f"client-{client}" / "key.pub").read_text()) for client in range(3)]
    assert [(line["client"], line["key"], line["by"]) for line in lines("enrolled")] == [
        (client, keys[client], operator) for client in range(3)
    ]
    assert [line["by"] for line in lines("device registered")] == [operator] * 3
    assert [line["by"] for line in lines("run started")] == [operator]
    assert [line["by"] for line in lines("run stopped")] == [operator]
    assert sorted((line["client"], line["capacity"]) for line in lines("joined")) == [(0, 1.0), (1, 0.25), (2, 0.25)]
    stranger = fingerprint((tmp_path / "stranger.pub").read_text())
    refused = {line.get("key") or line.get("command"): line["why"] for line in lines("refused")}
    assert refused[stranger] == "this device is not enrolled"
    assert START in refused
    assert [(line["client"], line["key"]) for line in lines("revoked")] == [(2, keys[2])]
    noted = lines("update refused")
    assert noted[0]["round"] == 1
    assert {line["client"] for line in noted} == {1}
    assert all("not finite" in line["why"] for line in noted)
    taken = [(line["round"], line["clients"], line["bytes_down"], line["bytes_up"]) for line in lines("round")]
    told = [(line["round"], len(line["clients"]), line["bytes_down"], line["bytes_up"]) for line in metrics]
    assert taken[: len(told)] == told, "the log and the metrics say the same of every round"
    assert len(taken) - len(told) in (0, 1), "a run may be stopped between the two"
    assert len(lines("server started")) == len(lines("server stopped")) == 1
    for secret in hidden:
        assert secret not in content
