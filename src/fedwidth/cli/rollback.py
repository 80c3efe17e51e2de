"""deploy rollback: going back to an earlier checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedwidth.errors import OptionError


def rollback(
    folder: Annotated[Path, typer.Argument(help="Folder of the deployment, or of its run.")],
    round: Annotated[int | None, typer.Argument(help="Round to go back to.", min=1)] = None,
    listed: Annotated[bool, typer.Option("--list", help="Only say which rounds there are.")] = False,
) -> None:
    """Make the checkpoint of an earlier round the current one; the next run goes on from there."""
    from fedwidth.run.checkpoint import NAME, rounds_done
    from fedwidth.run.checkpoint_history import go_back, rounds_kept
    from fedwidth.run.folder import read_metrics
    from fedwidth.run.summary import describe_score
    from fedwidth.watching.audit import NAME as AUDIT
    from fedwidth.watching.audit import AuditLog, operator_of

    run_folder = folder if (folder / NAME).exists() or not (folder / "run").is_dir() else folder / "run"
    if listed:
        if round is not None:
            raise OptionError("give a round to go back to, or --list, not both")
        scores = {line["round"]: describe_score(line) for line in read_metrics(run_folder)}
        now = rounds_done(run_folder)
        for kept in rounds_kept(run_folder):
            score = scores.get(kept)
            known = f"  {score}" if score else ""
            print(f"round {kept}{known}{'  (current)' * (kept == now)}")
        return
    if round is None:
        raise OptionError("give the round to go back to, or --list to see which there are")
    before = rounds_done(run_folder)
    go_back(run_folder, round)
    if (folder / "enrolled").is_dir():
        AuditLog(folder / AUDIT).note("rolled back", round=round, before=before, by=operator_of(folder))
    print(f"{run_folder} is at round {round} again; ./run.sh goes on from there")
