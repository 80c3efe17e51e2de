"""Bytes that a device's connection carries in a round, headers of HTTP and TLS and polling included.

    python benchmarks/wire.py [--capacities 1,1/2,1/4] [--rounds 4]

A real deployment on this machine (tests/flower/loopback.py): each device reaches the server through a relay that
passes bytes on and counts them. The first round is left out (the app itself travels before it); then what an idle
connection carries is counted for half a minute.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests" / "flower")]

from loopback import Loopback, wait_until  # noqa: E402

IDLE_SECONDS = 30


class Relay:
    """Passes connections on to a port of this machine and counts bytes: `up` from the device, `down` to it."""

    def __init__(self, port: int) -> None:
        self.target, self.up, self.down = port, 0, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            device, _ = self.listener.accept()
            server = socket.create_connection(("127.0.0.1", self.target))
            threading.Thread(target=self._pass, args=(device, server, "up"), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, device, "down"), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, way: str) -> None:
        try:
            while data := source.recv(1 << 16):
                setattr(self, way, getattr(self, way) + len(data))
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capacities", default="1,1/2,1/4")
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    capacities = tuple(given.capacities.split(","))
    number = len(capacities)
    recipe = (
        f"rounds = {given.rounds}\ndata.clients = {number}\ndevices.per_round = {number}\nevaluation.local = false\n"
    )
    recipe += 'data.partition = "iid"\nmodel.name = "cnn"\nmodel.options = { widths = [32, 64, 64] }\n'
    with tempfile.TemporaryDirectory() as folder:
        loop = Loopback(Path(folder) / "d", recipe, nodes=number, capacities=capacities)
        relays = [Relay(loop.plan.port) for _ in capacities]
        try:
            loop.superlink()
            loop.register()
            for client, relay in enumerate(relays):
                loop.node(client, more='trainer=""', **{"--superlink": f"127.0.0.1:{relay.port}"})
            loop.run()
            seen = []
            for rounds in range(1, given.rounds + 1):
                loop.wait_rounds(rounds, 600)
                seen.append((time.monotonic(), [(relay.down, relay.up) for relay in relays], loop.lines()[-1]))
            wait_until(lambda: (loop.out / "summary.json").exists(), 60, lambda: loop.log("run"))
            before = [(relay.down, relay.up) for relay in relays]
            time.sleep(IDLE_SECONDS)
            idle = [(relay.down - down, relay.up - up) for relay, (down, up) in zip(relays, before, strict=True)]
        finally:
            loop.close()
    seconds = (seen[-1][0] - seen[0][0]) / (given.rounds - 1)
    print(f"{seconds:.1f} s a round; an idle device's bytes a second, down and up:", end=" ")
    print(", ".join(f"{down / IDLE_SECONDS:.0f} and {up / IDLE_SECONDS:.0f}" for down, up in idle))
    print("| capacity | down | up |\n| --- | ---: | ---: |")
    for place, capacity in enumerate(capacities):
        first, last = seen[0][1][place], seen[-1][1][place]
        down, up = ((last[way] - first[way]) / (given.rounds - 1) for way in (0, 1))
        print(f"| {capacity} | {down:,.0f} | {up:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
