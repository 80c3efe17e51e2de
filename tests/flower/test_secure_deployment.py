"""Secure sums in real deployments on this machine: the embedded engine's bits, and devices that are lost. Minutes.

Run with `make test-flower`; docs/secure.md says when it was last run and what it measured.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from itertools import pairwise

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

from loopback import running, wait_until
from replay import replayed
from test_flower import CLIENTS, recipe

from small_runs import same

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:secure.min_clients is 2")]

SECURE = "secure.enabled = true\nsecure.min_clients = 2\nserver.label_rows = false\n"
QUICK = "patience-seconds=5.0 opening-seconds=40.0"

HOLD = '''
_ask = ask_trainer


def ask_trainer(facts, tensors, trainer):
    """As before, but it waits at a stage that the test names, to be killed there."""
    stage = "open" if "open" in tensors else "share" if "share" in tensors else facts["stage"]
    place = Path("{folder}") / f"hold-{{stage}}-{{facts['client']}}"
    if place.exists():
        place.rename(place.with_name(place.name + ".reached"))
        time.sleep(600)
    return _ask(facts, tensors, trainer)


client_app.__globals__["ask_trainer"] = ask_trainer
'''


@pytest.fixture(scope="module")
def loop(tmp_path_factory):
    """A SuperLink and four nodes of two capacities, which several runs share."""
    with running(tmp_path_factory.mktemp("secure") / "d", recipe(SECURE), CLIENTS) as made:
        yield made


@pytest.mark.parametrize("method", ["fedrolex", "fedbrb"])
def test_5_a_real_deployment_gives_the_embedded_engines_bits(loop, method):
    """Every client in every round, everything opened, and two exchanges a round."""
    text = recipe(f'{SECURE}method.name = "{method}"\n')
    loop.begin(text, method)
    run = loop.run(QUICK)
    loop.wait_finished(400)
    assert run.wait(240) == 0
    lines = loop.lines()
    assert [sorted(line["clients"]) for line in lines] == [[0, 1, 2, 3]] * 3
    assert [line["secure"]["closed"] for line in lines] == [0, 0, 0]
    assert same(loop.state(), replayed(text, lines))
    opened = [json.loads(line) for line in (loop.out / "opened.jsonl").read_text().splitlines()]
    assert [(entry["round"], entry["attempt"]) for entry in opened] == [(1, 0), (2, 0), (3, 0)]
    seconds = [later["seconds"] - sooner["seconds"] for sooner, later in pairwise(lines)]
    print(f"\nsecure {method}: seconds per round {[round(s, 1) for s in seconds]}, load {os.getloadavg()[0]:.1f}")


def kill_device(loop, client: int) -> None:
    """SIGKILL for all of a device's processes."""
    loop.kill(f"node-{client}")
    for pid in loop.family(client):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_12_to_15_devices_killed_at_each_stage_are_survived(loop):
    """One is killed while it trains, comes back, and is killed when it should open; another one when it should share.

    Rounds go on, those who are lost are named, and the state is the embedded engine's with the same absentees.
    """
    text = recipe(SECURE).replace("rounds = 3\n", "rounds = 40\n")
    loop.begin(text, "killed", more=HOLD.format(folder=loop.folder))
    loop.run(QUICK)
    for number, (stage, client) in enumerate([("train", 3), ("open", 1), ("share", 2)]):
        wait_until(lambda: len(full_rounds(loop)) > 0, 300, lambda: loop.log("run")[-4000:])
        done = len(loop.lines())
        hold = loop.folder / f"hold-{stage}-{client}"
        hold.touch()
        reached = hold.with_name(hold.name + ".reached")
        wait_until(reached.exists, 200, lambda: loop.log("run")[-4000:])
        kill_device(loop, client)
        lines = loop.wait_rounds(done + 3, 300)
        missing = [line for line in lines[done:] if client not in line["clients"]]
        assert missing, f"{stage}: it was killed and is in no round"
        assert any(line["clients"] and line["secure"]["closed"] < line["secure"]["segments"] for line in lines[done:])
        loop.node(client)
        if number < 2:
            wait_until(lambda: len(loop.lines()[-1]["clients"]) == 4, 300, lambda: loop.log("run")[-4000:])
    lines = loop.lines()
    loop.stop_run()
    lines = lines[: len(lines)]
    assert len({entry["round"] for entry in opened_of(loop)}) == len(opened_of(loop)), "none was opened twice"


def opened_of(loop) -> list[dict]:
    return [json.loads(line) for line in (loop.out / "opened.jsonl").read_text().splitlines()]


def full_rounds(loop) -> list[dict]:
    return [line for line in loop.lines()[-1:] if len(line["clients"]) == CLIENTS]
