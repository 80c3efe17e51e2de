"""Starts a run, shows its log and says how it ended: `python -m fedwidth.deployment.folder.launch APP LINK …`.

The rest of the command line is that of `flwr run`, whose output is passed on. Flower exits with 0 however the run
ended; this exits with 0 only if the run has finished, and else says in one line why it has not.
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
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

from fedwidth.config.read import read_settings
from fedwidth.deployment.access.signing import command
from fedwidth.deployment.folder.app_folder import PACKAGE
from fedwidth.deployment.folder.roster import write_roster
from fedwidth.deployment.run_config import RunConfig
from fedwidth.deployment.versions import check_flower
from fedwidth.errors import FedwidthError, OptionError
from fedwidth.run.cache import Cache
from fedwidth.run.checkpoint import rounds_done
from fedwidth.run.folder import check_same

Command = Callable[..., list[str]]
"""Gives the command line of `flwr` with these arguments."""
SETTING = re.compile(r"""[\w-]+\s*=\s*(?:"[^"]*"|'[^']*'|\S+)""")
"""A setting in the text of `--run-config`: key=value."""
STARTED = re.compile(r"started run (\d+)")
"""The line by which Flower gives the number of a run that it has started."""
RAISED = "ServerApp failed with exception: "
"""How Flower begins its remark on a run whose ServerApp has failed."""
OUTCOME_SECONDS = 10.0
"""How long Flower may take to mark a run as finished once its log has ended."""
INTERRUPTED = 130
"""The exit status of a command that was interrupted, as shells report it."""


def signed_flwr(*arguments: str) -> list[str]:
    """The command line of `flwr`, whose requests are signed with the operator's key."""
    return command("flwr", *arguments)


class LogStream:
    """The process `flwr run --stream`, which starts a run and prints its log, passed on until it ends."""

    def __init__(self, flwr: Command, app: str, link: str, arguments: list[str]) -> None:
        self.interrupted = False
        self._process = subprocess.Popen(
            flwr("run", app, link, "--stream", *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    def end(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal: showing the log ends, the run does not."""
        self.interrupted = True
        if number == signal.SIGTERM:  # Ctrl-C reaches the process too
            self._process.terminate()

    def follow(self) -> tuple[str, int]:
        """Pass the log on to its end; returns the run's number, empty where none was started, and the exit status."""
        run = ""
        assert self._process.stdout is not None
        with self._process:
            for line in self._process.stdout:
                print(line, end="", flush=True)
                found = STARTED.search(line)
                run = run or (found[1] if found else "")
        return run, self._process.returncode


def launch(
    app: str,
    link: str,
    arguments: list[str],
    *,
    flwr: Command = signed_flwr,
    outcome_seconds: float = OUTCOME_SECONDS,
) -> int:
    """Start the run and show its log; returns the exit status, 0 if the run has finished, now or before.

    `flwr` gives the command line by which Flower's command is called.
    """
    if (said := finished(Path(app), arguments)) is not None:
        print(said)
        return 0
    try:
        write_roster(Path(app), enrolled_of(Path(app), arguments))
    except FedwidthError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    stream = LogStream(flwr, app, link, arguments)
    before = {number: signal.signal(number, stream.end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return _follow(stream, lambda run: outcome(run, link, flwr=flwr, seconds=outcome_seconds))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _follow(stream: LogStream, outcome_of: Callable[[str], tuple[str, str]]) -> int:
    """Show a run's log to its end, and say how the run ended; returns the exit status."""
    run, status = stream.follow()
    if stream.interrupted:
        after = f"run {run} goes on; ./flwr.sh stop {run} ends it" if run else "it may not have been started"
        print(f"no longer watching: {after}", file=sys.stderr)
        return INTERRUPTED
    if not run:
        print("error: the run was not started: see above", file=sys.stderr)
        return status or 1
    said = verdict(*outcome_of(run))
    if said is not None:
        print(f"error: {said}", file=sys.stderr)
    return int(said is not None)


def finished(app: Path, arguments: Sequence[str]) -> str | None:
    """A line about a run that has had all its rounds already; None where there is something left to do."""
    try:
        run_config = RunConfig.of(config_of(app, arguments))
        out = Path(run_config.out)
        settings = run_config.with_defaults(read_settings(app / PACKAGE / "recipe.toml").main)
        if not (out / "summary.json").exists() or rounds_done(out) < settings.rounds:
            return None
        check_same(out, Cache().resolved(settings))
    except (FedwidthError, OSError, ValueError, KeyError, TypeError):
        return None  # the run itself says what is wrong
    return f"the run in {out} has finished: {settings.rounds} of {settings.rounds} rounds; see fedwidth report {out}"


def config_of(app: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """The run config of an app, with what the command line changes of it."""
    config: dict[str, Any] = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    for text in (argument for before, argument in pairwise(arguments) if before in ("-c", "--run-config")):
        config |= tomllib.loads("\n".join(found[0] for found in SETTING.finditer(text)))
    return config


def enrolled_of(app: Path, arguments: Sequence[str]) -> str:
    """The folder of the enrolled devices that the run config names; empty where it cannot be read."""
    try:
        return str(config_of(app, arguments).get("enrolled", ""))
    except (OSError, ValueError, KeyError, TypeError):
        return ""  # the run itself says what is wrong


def outcome(run: str, link: str, *, flwr: Command, seconds: float) -> tuple[str, str]:
    """The status of a run and Flower's remarks on it; a run that still goes on has so many seconds to end."""
    deadline = time.monotonic() + seconds
    while True:
        done = subprocess.run(flwr("list", link, "--run-id", run, "--format", "json"), capture_output=True, text=True)
        try:
            (found,) = json.loads(done.stdout)["runs"]
            status, details = str(found["status"]), str(found.get("status-details", ""))
        except (ValueError, KeyError, TypeError):
            return "", ""
        if status.startswith("finished") or time.monotonic() > deadline:
            return status, details
        time.sleep(0.5)


def verdict(status: str, details: str) -> str | None:
    """Why a run has not finished, in one line; None where it has.

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
