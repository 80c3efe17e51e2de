"""Starts a run and says what became of it: `python -m fedwidth.flower.deployment.launch APP LINK …`.

The rest of the command line is that of `flwr run`, whose output is passed on. Flower reports success whatever became of
the run; this exits with 0 only if it finished, and else says why it did not in one line.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType

from fedwidth.config.read import read_settings
from fedwidth.errors import FedwidthError, OptionError
from fedwidth.flower.access.signing import command
from fedwidth.flower.deployment.app_folder import PACKAGE
from fedwidth.flower.versions import check_flower
from fedwidth.run.checkpoint import rounds_done
from fedwidth.run.folder import check_same

GIVEN = re.compile(r"""[\w-]+\s*=\s*(?:"[^"]*"|'[^']*'|\S+)""")
STARTED = re.compile(r"started run (\d+)")
RAISED = "ServerApp failed with exception: "
SETTLE_SECONDS = 10.0
"""How long a run may take to be marked as finished once its log has ended."""
INTERRUPTED = 130
"""As shells report it."""


class Watch:
    """`flwr run --stream`, passed on until it ends."""

    def __init__(self, app: str, link: str, more: list[str]) -> None:
        self.interrupted = False
        self._process = subprocess.Popen(
            command("flwr", "run", app, link, "--stream", *more),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    def end(self, number: int, _frame: FrameType | None) -> None:
        """On a signal: watching ends, the run does not."""
        self.interrupted = True
        if number == signal.SIGTERM:  # Ctrl-C reaches the process too
            self._process.terminate()

    def follow(self) -> tuple[str, int]:
        """The run's number, empty where none was started, and the exit status."""
        run = ""
        assert self._process.stdout is not None
        with self._process:
            for line in self._process.stdout:
                print(line, end="", flush=True)
                found = STARTED.search(line)
                run = run or (found[1] if found else "")
        return run, self._process.returncode


def launch(app: str, link: str, more: list[str]) -> int:
    """Start the run and watch it; 0 if it finished, now or before."""
    if (said := finished(Path(app), more)) is not None:
        print(said)
        return 0
    watch = Watch(app, link, more)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, watch.end)
    run, status = watch.follow()
    if watch.interrupted:
        after = f"run {run} goes on; ./flwr.sh stop {run} ends it" if run else "it may not have been started"
        print(f"no longer watching: {after}", file=sys.stderr)
        return INTERRUPTED
    if not run:
        print("error: the run was not started: see above", file=sys.stderr)
        return status or 1
    said = verdict(*outcome(run, link))
    if said is not None:
        print(f"error: {said}", file=sys.stderr)
    return int(said is not None)


def finished(app: Path, more: Sequence[str]) -> str | None:
    """What to say of a run that has had all its rounds already; None where there is something left to do."""
    from fedwidth.flower.server import Deployment  # needs a Flower it was made for

    try:
        config = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
        for text in (word for before, word in pairwise(more) if before in ("-c", "--run-config")):
            config |= tomllib.loads("\n".join(found[0] for found in GIVEN.finditer(text)))
        deployment = Deployment.of(config)
        out = Path(deployment.out)
        settings = deployment.with_defaults(read_settings(app / PACKAGE / "recipe.toml").main)
        if not (out / "summary.json").exists() or rounds_done(out) < settings.rounds:
            return None
        check_same(out, settings)
    except (FedwidthError, OSError, ValueError, KeyError, TypeError):
        return None  # the run itself says what is wrong
    return f"the run in {out} has finished: {settings.rounds} of {settings.rounds} rounds; see fedwidth report {out}"


def outcome(run: str, link: str) -> tuple[str, str]:
    """The status of a run and Flower's remarks on it; a run that is still going on is given a moment to end."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        words = command("flwr", "list", link, "--run-id", run, "--format", "json")
        done = subprocess.run(words, capture_output=True, text=True)
        try:
            (found,) = json.loads(done.stdout)["runs"]
            status, details = str(found["status"]), str(found.get("status-details", ""))
        except (ValueError, KeyError, TypeError):
            return "", ""
        if status.startswith("finished") or time.monotonic() > deadline:
            return status, details
        time.sleep(0.5)


def verdict(status: str, details: str) -> str | None:
    """Why a run did not finish, in one line; None where it did.

    >>> verdict("finished:completed", "")
    >>> verdict("finished:failed", "ServerApp failed with exception: only 1 of 4 nodes came")
    'the run failed: only 1 of 4 nodes came'
    >>> verdict("finished:stopped", "")
    'the run was stopped; ./run.sh goes on after its last finished round'
    """
    if status == "finished:completed":
        return None
    if not status:
        return "the server can no longer be asked what became of the run; start ./superlink.sh, then ./run.sh"
    if status == "finished:stopped":
        return "the run was stopped; ./run.sh goes on after its last finished round"
    if status == "finished:failed":
        if "heartbeat" in details:
            return "the run failed: its process ended without a word (killed, or out of memory)"
        return f"the run failed: {' '.join(details.removeprefix(RAISED).split())}"
    return f"the log ended, but the run is {status}; ./flwr.sh list shows what becomes of it"


def main() -> None:
    """Start the run that the command line names."""
    try:
        check_flower()
    except OptionError as error:
        raise SystemExit(f"error: {error}") from None
    if len(sys.argv) < 3:
        raise SystemExit("error: give the app's folder and the name of the link")
    raise SystemExit(launch(sys.argv[1], sys.argv[2], sys.argv[3:]))


if __name__ == "__main__":
    main()
