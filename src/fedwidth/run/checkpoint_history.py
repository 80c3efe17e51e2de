"""Earlier checkpoints of a run, and going back to one of them.

    history/round-12.safetensors    the checkpoint of round 12, as it was

The last few are kept and those of every tenth round. A checkpoint is never changed once it is written, so keeping it is
a second name for its file. Files in which clients' memory lies (SCAFFOLD) are kept as long as a checkpoint names them.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import ExitStack
from pathlib import Path

from fedwidth.errors import OptionError, StateError
from fedwidth.files import write_whole
from fedwidth.run import checkpoint
from fedwidth.run.folder import HISTORY, LOCK, SERVE_LOCK, Metrics, lines_done, locked

EVERY = 10
"""The checkpoint of every so many-th round is kept for good."""
_NAME = re.compile(r"round-(\d+)\.safetensors", re.ASCII)


def rounds_kept(folder: Path) -> list[int]:
    """The rounds one can go back to, ascending."""
    found = (_NAME.fullmatch(path.name) for path in (folder / HISTORY).glob("round-*.safetensors"))
    return sorted(int(match[1]) for match in found if match)


def keep(folder: Path, round: int, number: int) -> None:
    """Keep the checkpoint that has just been written, and of earlier ones the last `number` and every tenth."""
    there = folder / HISTORY
    there.mkdir(exist_ok=True)
    _give_name(folder / checkpoint.NAME, path_of(folder, round))
    recent = [kept for kept in rounds_kept(folder) if kept <= round][-number:]
    for kept in rounds_kept(folder):
        if kept > round or (kept not in recent and kept % EVERY):
            path_of(folder, kept).unlink(missing_ok=True)


def files_needed(folder: Path) -> set[str]:
    """The files of clients' memory that kept checkpoints name."""
    found: set[str] = set()
    for round in rounds_kept(folder):
        found |= checkpoint.client_files(path_of(folder, round))
    return found


def go_back(folder: Path, round: int) -> None:
    """Make the checkpoint of an earlier round the run's own; the next run goes on from there.

    The moment the checkpoint is replaced decides: killed before it nothing has changed, killed after it the next run
    leaves out the metrics of later rounds by itself.
    """
    if not (folder / checkpoint.NAME).exists():
        raise OptionError(f"{folder} holds no checkpoint")
    with ExitStack() as stack:
        for lock in (LOCK, SERVE_LOCK):
            stack.enter_context(locked(folder, lock))
        kept, now = rounds_kept(folder), checkpoint.rounds_done(folder)
        if round not in kept or round > now:
            earlier = ", ".join(str(each) for each in kept if each < now) or "none"
            raise OptionError(
                f"{folder} is at round {now} and has no checkpoint of round {round}; there are: {earlier}"
            )
        path = path_of(folder, round)
        if checkpoint.check_whole(path, folder)["round"] != round:
            raise StateError(f"{path} is damaged: it holds another round")
        lines_done(folder, round)  # refuses where the metrics lack one of its rounds
        write_whole(folder / checkpoint.NAME, path.read_bytes())
        Metrics(folder, rounds=round)
        for name in ("summary.json", "clients.json", "report.html"):  # of a run that had ended
            (folder / name).unlink(missing_ok=True)
        for later in (each for each in kept if each > round):
            path_of(folder, later).unlink(missing_ok=True)


def path_of(folder: Path, round: int) -> Path:
    """The file in which the checkpoint of a round is kept."""
    return folder / HISTORY / f"round-{round}.safetensors"


def _give_name(file: Path, name: Path) -> None:
    """A second name for a file; a copy where the file system has no such thing. Whole or not at all."""
    partial = name.with_name(name.name + ".partial")
    partial.unlink(missing_ok=True)
    try:
        try:
            os.link(file, partial)
        except OSError:
            shutil.copyfile(file, partial)
        os.replace(partial, name)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise StateError(f"cannot write {name}: {error.strerror or error}") from error
