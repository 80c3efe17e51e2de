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
ROUNDS = 14
PATIENT = "introduction-seconds=60.0 patience-seconds=120.0 opening-seconds=120.0"
QUICK = "introduction-seconds=60.0 patience-seconds=15.0 opening-seconds=60.0"

HOLD = '''
_at_once = ask_trainer


def ask_trainer(facts, tensors, trainer):
    """As before, but it waits at a stage that the test names, until it is killed or let go."""
    stage = "open" if "open" in tensors else "share" if "share" in tensors else facts["stage"]
    place = Path("{folder}") / f"hold-{{stage}}-{{facts['client']}}"
    if place.exists():
        reached = place.rename(place.with_name(place.name + ".reached"))
        while reached.exists():
            time.sleep(0.2)
    return _at_once(facts, tensors, trainer)
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
    run = loop.run(PATIENT)
    loop.wait_finished(900)
    assert run.wait(240) == 0
    lines = loop.lines()
    assert [sorted(line["clients"]) for line in lines] == [[0, 1, 2, 3]] * 3
    assert [line["secure"]["closed"] for line in lines] == [0, 0, 0]
    assert same(loop.state(), replayed(text, lines))
    opened = [json.loads(line) for line in (loop.out / "opened.jsonl").read_text().splitlines()]
    assert [(entry["round"], entry["attempt"]) for entry in opened] == [(1, 0), (2, 0), (3, 0)]
    seconds = [later["seconds"] - sooner["seconds"] for sooner, later in pairwise(lines)]
    print(f"\nsecure {method}: seconds per round {[round(s, 1) for s in seconds]}, load {os.getloadavg()[0]:.1f}")


def hold(loop, stage: str, client: int):
    """Have a client wait when it comes to a stage; returns the file that is there once it has, and lets it go."""
    place = loop.folder / f"hold-{stage}-{client}"
    place.touch()
    return place.with_name(place.name + ".reached")


def kill(loop, client: int, only: str = "") -> None:
    """SIGKILL for all of a device's processes, or for those in whose command lines these words are."""
    if not only:
        loop.kill(f"node-{client}")
    for pid, command in loop.family(client).items():
        if only in command:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_12_to_15_devices_killed_at_each_stage_are_survived(loop):
    """The trainer of one is killed before it shares, another device while it trains, and a third when it should open.

    Each is left out of a round where it has not sent its words, and takes part again. The run ends, no round is
    opened twice, and the state is the embedded engine's with the same absentees.
    """
    text = recipe(SECURE).replace("rounds = 3\n", f"rounds = {ROUNDS}\n")
    loop.begin(text, "killed", more=HOLD.format(folder=loop.folder))
    log = lambda: loop.log("run")[-4000:]  # noqa: E731
    reached = hold(loop, "share", 2)
    loop.run(QUICK)
    wait_until(reached.exists, 300, log)
    kill(loop, 2, only="deployment.node.trainer")
    reached.unlink()
    lines = loop.wait_rounds(1, 300)
    assert 2 not in lines[0]["clients"]
    for stage, client in (("train", 3), ("open", 1)):
        wait_until(lambda: len(loop.lines()[-1]["clients"]) == CLIENTS, 400, log)
        reached = hold(loop, stage, client)
        wait_until(reached.exists, 200, log)
        done = len(loop.lines())
        kill(loop, client)
        reached.unlink()
        lines = loop.wait_rounds(done + 2, 300)
        assert (client in lines[done]["clients"]) == (stage == "open"), "its words were there, or were not"
        assert client not in lines[done + 1]["clients"]
        loop.node(client)
    loop.wait_finished(900)
    lines = loop.lines()
    assert len(lines) == ROUNDS
    opened = [json.loads(line) for line in (loop.out / "opened.jsonl").read_text().splitlines()]
    assert len({entry["round"] for entry in opened}) == len(opened), "none was opened twice"
    assert sum(line["secure"]["closed"] < line["secure"]["segments"] for line in lines) > ROUNDS / 2
    assert same(loop.state(), replayed(text, lines))
    print("\nclients of the rounds:", [line["clients"] for line in lines])


def test_12_a_device_killed_at_its_introduction_is_survived(loop):
    """It is named and waited for; started again, it introduces itself and takes part from the first round on.

    Another number of rounds than above makes another recipe: devices open no round of a recipe a second time.
    """
    text = recipe(SECURE).replace("rounds = 3\n", "rounds = 4\n")
    loop.begin(text, "introduced", more=HOLD.format(folder=loop.folder))
    log = lambda: loop.log("run")[-4000:]  # noqa: E731
    reached = hold(loop, "introduce", 0)
    loop.run(PATIENT.replace("introduction-seconds=60.0", "introduction-seconds=20.0"))
    wait_until(reached.exists, 300, log)
    kill(loop, 0)
    reached.unlink()
    wait_until(lambda: "3 of 4 nodes are there; not there: client 0" in loop.log("run"), 120, log)
    loop.node(0)
    loop.wait_finished(600)
    lines = loop.lines()
    assert [sorted(line["clients"]) for line in lines] == [[0, 1, 2, 3]] * 4
    assert same(loop.state(), replayed(text, lines))
