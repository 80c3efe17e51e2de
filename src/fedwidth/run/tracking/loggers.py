"""TensorBoard, MLflow and Weights & Biases, each as its package wants to be spoken to, and imported only when used."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from fedwidth.errors import OptionError
from fedwidth.settings import Settings


class Backend(Protocol):
    """One logger. Several of a kind may be open at a time."""

    def open(self, run: str) -> tuple[str, int]:
        """Go on with the logger's run of this id ('': a new one); its id, and the last round it holds."""

    def log(self, metrics: dict[str, float], round: int) -> None:
        """Log the numbers of a round."""

    def close(self, finished: bool) -> None:
        """Flush and close; a run that was not finished is marked so."""


class _TensorBoard:
    def __init__(self, title: str, settings: Settings, folder: Path) -> None:
        del title, settings
        self.folder = folder / "tensorboard"

    def open(self, run: str) -> tuple[str, int]:
        from torch.utils.tensorboard import SummaryWriter

        del run
        # A killed run may have lost its last minutes: all rounds are written anew, in place of the ones before.
        self.writer = SummaryWriter(str(self.folder), purge_step=1)
        return "", 0

    def log(self, metrics: dict[str, float], round: int) -> None:
        for key, value in metrics.items():
            self.writer.add_scalar(key, value, round)

    def close(self, finished: bool) -> None:
        del finished
        self.writer.close()


class _MLflow:
    """Through the client, which has no notion of one active run: several may be open at a time."""

    def __init__(self, title: str, settings: Settings, folder: Path) -> None:
        import mlflow

        del folder
        self.mlflow, self.name, self.settings = mlflow, f"{title}, seed {settings.seed}", settings
        self.client = mlflow.MlflowClient()
        self.client.search_experiments(max_results=1)  # whether the store answers

    def open(self, run: str) -> tuple[str, int]:
        last = self._last_round(run) if run else None
        if last is None:
            run = self.client.create_run(self._experiment(), run_name=self.name).info.run_id
            params = [self.mlflow.entities.Param(key, str(value)) for key, value in _flat(self.settings).items()]
            self.client.log_batch(run, params=params)
        self.run = run
        self.client.update_run(run, status="RUNNING")
        return run, last or 0

    def log(self, metrics: dict[str, float], round: int) -> None:
        now = int(1000 * time.time())
        self.client.log_batch(self.run, [self.mlflow.entities.Metric(k, v, now, round) for k, v in metrics.items()])

    def close(self, finished: bool) -> None:
        self.client.set_terminated(self.run, "FINISHED" if finished else "KILLED")

    def _experiment(self) -> str:
        """The id of the experiment that MLflow's own variables name, else of one called fedwidth."""
        if chosen := os.environ.get("MLFLOW_EXPERIMENT_ID"):
            return chosen
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedwidth")
        found = self.client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self.client.create_experiment(name))

    def _last_round(self, run: str) -> int | None:
        """The last round in a run of the store; None: it is not there any more, or not in this store."""
        try:
            found = self.client.get_run(run)
        except self.mlflow.exceptions.MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return int(found.data.metrics.get("round", 0)) if found.info.lifecycle_stage == "active" else None


class _Wandb:
    def __init__(self, title: str, settings: Settings, folder: Path) -> None:
        import wandb

        self.wandb, self.title, self.settings, self.folder = wandb, title, settings, folder
        self.online = wandb.setup().settings.mode not in ("offline", "dryrun", "disabled")
        if self.online:
            self._log_in()

    def open(self, run: str) -> tuple[str, int]:
        self.run = self.wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedwidth"),
            name=f"{self.title}, seed {self.settings.seed}",
            group=self.title,
            config=asdict(self.settings),
            dir=str(self.folder),
            id=run or uuid4().hex[:8],
            # Offline nothing is known of what was logged before: the new part has the same id and holds every round.
            resume="allow" if run and self.online else None,
            # Several runs may be open at a time, and a progress bar is no log.
            settings=self.wandb.Settings(reinit="create_new", console="off"),
        )
        return self.run.id, max(0, self.run.starting_step - 1)

    def log(self, metrics: dict[str, float], round: int) -> None:
        self.run.log(metrics, step=round)

    def close(self, finished: bool) -> None:
        self.run.finish(exit_code=0 if finished else 255)  # 255: as wandb itself reports Ctrl-C

    def _log_in(self) -> None:
        """Ask for the key now, and not in the middle of a progress bar."""
        try:
            if self.wandb.login():
                return
            why = "not logged in."
        except self.wandb.Error as error:
            why = str(error)
        raise OptionError(f"{why} (WANDB_MODE=offline needs neither account nor network)")


BACKENDS: dict[str, Callable[[str, Settings, Path], Backend]] = {
    "tensorboard": _TensorBoard,
    "mlflow": _MLflow,
    "wandb": _Wandb,
}


def _flat(settings: Settings) -> dict[str, Any]:
    """Every setting by its dotted key."""
    flat: dict[str, Any] = {}
    for name, value in asdict(settings).items():
        flat |= {f"{name}.{key}": v for key, v in value.items()} if isinstance(value, dict) else {name: value}
    return flat
