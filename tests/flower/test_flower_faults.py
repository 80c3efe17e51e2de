"""Real deployments on this machine whose parts are killed, stopped and beset: who comes back, and how soon. Minutes.

Run with `make test-flower`.
"""

from __future__ import annotations

import os
import signal
import socket
import ssl
import time
from contextlib import suppress
from itertools import pairwise

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

from loopback import Loopback, Proxy, running, wait_until
from test_flower import CLIENTS, recipe
from test_flower_deployment import replayed

from small_runs import same

pytestmark = pytest.mark.slow

BACK = ("Connection successful after", "SuperNode ID:")
"""What a device says once the server has answered again."""


def test_after_a_restart_behind_a_proxy_all_nodes_are_back_within_a_minute_five_times(tmp_path):
    made = Loopback(tmp_path / "d", recipe())
    proxy, took = Proxy(made.setup.port), []
    try:
        made.superlink()
        made.register()
        for client in range(CLIENTS):
            made.node(client, through=proxy.port)
        wait_until(lambda: all("SuperNode ID:" in made.log(f"node-{c}") for c in range(CLIENTS)), 300)
        for _ in range(5):
            made.kill("superlink")
            time.sleep(8)
            before = {c: len(made.log(f"node-{c}")) for c in range(CLIENTS)}
            made.superlink()
            begun = time.monotonic()
            wait_until(
                lambda before=before: all(
                    any(word in made.log(f"node-{c}")[start:] for word in BACK) for c, start in before.items()
                ),
                60,
                lambda: "\n".join(made.log(f"node-{c}")[-1500:] for c in range(CLIENTS)),
            )
            took.append(round(time.monotonic() - begun, 1))
        print(f"\nall {CLIENTS} nodes back after {took} s, load {os.getloadavg()[0]:.1f}")
        made.run()
        made.wait_finished()
        assert [sorted(line["clients"]) for line in made.lines()] == [[0, 1, 2, 3]] * 3
        assert same(made.state(), replayed(recipe(), made.lines()))
    finally:
        proxy.close()
        made.close()


@pytest.fixture(scope="module")
def loop(tmp_path_factory):
    """A SuperLink and four nodes of two capacities, which several tests share."""
    with running(tmp_path_factory.mktemp("faults") / "d", recipe(), CLIENTS) as made:
        yield made


def trainer_of(loop: Loopback, client: int) -> int:
    """The process of a device's trainer."""
    (found,) = (process for process, words in loop.family(client).items() if "deployment.node.trainer" in words)
    return found


def test_a_device_whose_trainer_is_stopped_is_named_soon_and_takes_part_again(loop):
    """Rounds have 600 seconds, and none waits for them."""
    text = recipe().replace("rounds = 3", "rounds = 8").replace("evaluation.every = 2", "evaluation.every = 50")
    loop.begin(text, "stopped")
    loop.run()
    loop.wait_rounds(1)
    stopped = trainer_of(loop, 2)
    os.kill(stopped, signal.SIGSTOP)
    loop.wait_finished(400)
    lines = loop.lines()
    (missed,) = (line for line in lines if "2" in line.get("absent", {}))
    assert "the trainer ended before it answered: it gave no sign of life for 30 seconds" in missed["absent"]["2"]
    assert 2 in lines[-1]["clients"]
    assert trainer_of(loop, 2) != stopped
    seconds = [later["seconds"] - sooner["seconds"] for sooner, later in pairwise(lines)]
    print(f"\nseconds per round {[round(s, 1) for s in seconds]}, load {os.getloadavg()[0]:.1f}")
    assert max(seconds) < 120
    assert same(loop.state(), replayed(text, lines))


def test_devices_come_in_while_a_thousand_strangers_stall(loop):
    """Uploads over TLS that stop half-way, without a key; before, new connections were reset."""
    context = ssl.create_default_context(cafile=str(loop.folder / "certificates" / "ca.pem"))
    held: list[socket.socket] = []
    begun = time.monotonic()
    for number in range(1001):
        with suppress(OSError):
            plain = socket.create_connection(("127.0.0.1", loop.setup.port), timeout=20)
            held.append(plain)
            if number % 2:
                held[-1] = context.wrap_socket(plain, server_hostname="127.0.0.1")
                held[-1].sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n")
    print(f"\n{len(held)} strangers in {time.monotonic() - begun:.1f} s")
    loop.begin(recipe(), "strangers")
    assert loop.run().wait(600) == 0, loop.log("run")
    assert [sorted(line["clients"]) for line in loop.lines()] == [[0, 1, 2, 3]] * 3
    wait_until(lambda: open_ones(held) == 0, 240, lambda: f"{open_ones(held)} are open")
    for connection in held:
        connection.close()


def open_ones(connections: list[socket.socket]) -> int:
    """How many the server has not ended."""
    still = 0
    for connection in connections:
        connection.settimeout(0.001)
        try:
            still += connection.recv(4096) != b""
        except (TimeoutError, ssl.SSLWantReadError):
            still += 1
        except OSError:
            pass
    return still


def test_sigterm_ends_the_server_within_seconds_while_a_run_is_watched_and_a_second_one_is_refused(loop):
    text = recipe().replace("rounds = 3", "rounds = 200").replace("evaluation.every = 2", "evaluation.every = 500")
    loop.begin(text, "ended")
    run = loop.run()
    loop.wait_rounds(1)
    second = loop.start("second", "./superlink.sh", "--port", str(loop.setup.port + CLIENTS + 1))
    assert second.wait(240) == 1
    assert loop.log("second").splitlines() == ["error: another SuperLink uses state/superlink.db; end that one first"]
    first, begun = loop.processes.pop("superlink"), time.monotonic()
    first.terminate()
    first.wait(120)
    took = time.monotonic() - begun
    print(f"\nended after {took:.1f} s")
    assert took < 30, "12 seconds, and what a busy machine adds"
    assert run.wait(240) != 0
    names = ("deployment.access.superlink", "flower-superexec", "flwr-serverapp")
    wait_until(lambda: not any(name in words for words in server_family(loop) for name in names), 120)
    loop.superlink()
    loop.begin(recipe(), "after")
    assert loop.run().wait(600) == 0, loop.log("run")
    assert [sorted(line["clients"]) for line in loop.lines()] == [[0, 1, 2, 3]] * 3


def server_family(loop: Loopback) -> list[str]:
    """Command lines of the processes that are no device's."""
    devices = {process for client in range(CLIENTS) for process in loop.family(client)}
    return [words for process, words in loop.family().items() if process not in devices]


NOT_FINITE = '''

def misbehave(message, context, call_next):
    """Client 5 sends NaN."""
    reply = call_next(message, context)
    if message.metadata.message_type == "train" and context.node_config["client"] == 5 and reply.has_content():
        arrays = dict(reply.content["arrays"])
        name, old = next(iter(arrays.items()))
        arrays[name] = Array(old.dtype, old.shape, old.stype, b"\\xff" * len(old.data))
        reply.content["arrays"] = ArrayRecord(arrays)
    return reply


for key, function in list(app._registered_funcs.items()):
    app._registered_funcs[key] = (lambda inner: lambda m, c: misbehave(m, c, inner))(function)
'''


def test_eight_nodes_twelve_rounds_one_killed_one_hung_one_hostile_and_a_server_restart(tmp_path):
    """It ends, and equals the embedded engine with the same absentees."""
    text = recipe().replace("rounds = 3", "rounds = 12").replace("evaluation.every = 2", "evaluation.every = 50")
    text = text.replace("data.clients = 4", "data.clients = 8").replace(
        "devices.per_round = 4", "devices.per_round = 8"
    )
    made, begun = Loopback(tmp_path / "d", text, nodes=8), time.monotonic()
    config = "round-seconds=90.0 least-clients=3"

    def misses(client: int, since: int = 0) -> bool:
        return any(client not in line["clients"] for line in made.lines()[since:])

    try:
        made.begin(text, "eight", more=NOT_FINITE)
        made.superlink()
        made.register()
        for client in range(8):
            made.node(client)
        made.run(config)
        made.wait_rounds(2, 400)
        os.kill(trainer_of(made, 2), signal.SIGSTOP)
        wait_until(lambda: misses(2, 1), 300, lambda: made.log("run")[-3000:])
        made.kill("node-3")
        wait_until(lambda: misses(3), 300, lambda: made.log("run")[-3000:])
        made.node(3)
        made.wait_rounds(len(made.lines()) + 1, 400)
        made.kill("superlink")
        made.kill("run")
        made.superlink()
        made.run(config)
        made.wait_finished(900)
        lines = made.lines()
        assert [line["round"] for line in lines] == list(range(1, 13))
        assert all(5 not in line["clients"] for line in lines)
        assert any("not finite" in line.get("absent", {}).get("5", "") for line in lines)
        assert any("no sign of life" in line.get("absent", {}).get("2", "") for line in lines)
        for client in (2, 3):
            back = [number for number, line in enumerate(lines) if client in line["clients"]]
            missed = [number for number, line in enumerate(lines) if client not in line["clients"]]
            assert min(missed) < max(back), f"client {client} is back"
        assert same(made.state(), replayed(text, lines))
        print(f"\ntook {time.monotonic() - begun:.0f} s, load {os.getloadavg()[0]:.1f}")
        for line in lines:
            print(f"round {line['round']}, {line['seconds']:.0f} s: {line['clients']}, absent {line.get('absent', {})}")
    finally:
        made.close()
