"""Real deployments on this machine whose parts are killed, stopped and beset: who comes back, and how soon. Minutes.

Run with `make test-flower`.
"""

from __future__ import annotations

import os
import time

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

from loopback import Loopback, Proxy, wait_until
from test_flower import CLIENTS, recipe
from test_flower_deployment import replayed

from small_runs import same

pytestmark = pytest.mark.slow

BACK = ("Connection successful after", "SuperNode ID:")
"""What a device says once the server has answered again."""


def test_after_a_restart_behind_a_proxy_all_nodes_are_back_within_a_minute_five_times(tmp_path):
    made = Loopback(tmp_path / "d", recipe())
    proxy, took = Proxy(made.plan.port), []
    try:
        made.superlink()
        made.register()
        for client in range(CLIENTS):
            made.node(client, through=proxy.port)
        wait_until(lambda: all("SuperNode ID:" in made.log(f"node-{c}") for c in range(CLIENTS)), 120)
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
