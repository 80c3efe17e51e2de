"""How a run begins: at its first round, or where its last checkpoint left it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fedwidth.config.write import settings_toml
from fedwidth.core.updates import not_finite
from fedwidth.errors import OptionError, StateError
from fedwidth.methods.definition.promises import check_promises
from fedwidth.methods.lookup.reference import is_shipped
from fedwidth.run import checkpoint
from fedwidth.run.budget import read_ledger
from fedwidth.run.checkpoint_history import files_needed
from fedwidth.run.folder import CONFIG, PYTHON, check_folder, clear_folder, locked
from fedwidth.run.recorder import Recorder
from fedwidth.training.client_memory import FOLDER, Files, forget_clients
from fedwidth.training.server.state import Server

if TYPE_CHECKING:
    from fedwidth.experiment import Experiment


@contextmanager
def begin(
    experiment: Experiment,
    folder: Path | None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    packed: int = 1,
) -> Iterator[Recorder]:
    """A context with the run under way, at its first round or its last checkpoint; its folder is locked meanwhile."""
    check_own_method(experiment)
    with ExitStack() as stack:
        if folder is not None:
            check_folder(
                folder,
                experiment.settings,
                resume=resume,
                overwrite=overwrite,
                given=experiment.given,
                words=PYTHON,  # commands have looked before
            )
            stack.enter_context(locked(folder))
            if overwrite:
                clear_folder(folder)
        server, seconds = _start(experiment, folder, resume)
        if folder:  # it may be ahead of the checkpoint: then rounds are repeated
            server = replace(server, spent=server.spent.most(read_ledger(folder)))
        if experiment.device.type == "cuda" and experiment.trainer.takes_channels_last:  # then evaluation is faster
            experiment.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        # A private run may go on with another budget, and what the folder says of itself is to say so.
        if folder and (not (folder / CONFIG).exists() or experiment.settings.privacy.noise):
            checkpoint.write_whole(folder / CONFIG, settings_toml(experiment.settings, experiment.given))
        yield stack.enter_context(Recorder(experiment, folder, server, seconds=seconds, packed=packed))


def check_own_method(experiment: Experiment) -> None:
    """Try out what a method that is not the package's promises."""
    if is_shipped(experiment.method):
        return
    first = experiment.first_server()
    check_promises(
        experiment.method,
        experiment.plan,
        state=first.state,
        memory=first.memory,
        enrolled=experiment.rounds.enrolled,
        clients=len(experiment.partition),
        seed=experiment.settings.seed,
    )


def _start(experiment: Experiment, folder: Path | None, resume: bool) -> tuple[Server, float]:
    """The server to go on from, and the seconds the run has taken so far."""
    if resume and folder is None:
        raise OptionError("there is nothing to resume without an output folder")
    # Where clients' memory is kept, if not in the memory of this machine.
    files = Files(folder / FOLDER if folder else None) if experiment.settings.client_memory == "disk" else None
    if resume and folder and (folder / checkpoint.NAME).exists():
        shapes = {name: tuple(tensor.shape) for name, tensor in experiment.first_state.items()}
        server, facts = checkpoint.load_server(
            folder,
            identity=experiment.identity,
            device=experiment.device,
            files=files,
            also=lambda: files_needed(folder),
            check=lambda state: experiment.plan.check_shapes(state, shapes, "the run's model"),
        )
        if (name := not_finite(server.state)) is not None:  # older versions wrote such
            raise StateError(
                f"{folder / checkpoint.NAME} has a value in '{name}' that is not finite, with which no client could"
                " train: go back to an earlier checkpoint, or begin anew"
            )
        return server, float(facts["seconds"])
    if folder:
        forget_clients(folder)
    return experiment.first_server(files), 0.0
