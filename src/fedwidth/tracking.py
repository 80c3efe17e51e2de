"""Optional loggers: TensorBoard, MLflow, Weights & Biases; each an extra, imported only when asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from fedwidth.errors import OptionError, unknown
from fedwidth.settings import Settings

TRACKERS = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}


class Tracker(Protocol):
    """Takes the metrics of each round."""

    def log(self, line: dict[str, Any]) -> None:
        """Log one round."""

    def close(self) -> None:
        """Flush and close."""


def check_tracker(name: str) -> None:
    """Refuse a tracker that is unknown or not installed; '' is none."""
    if not name:
        return
    if name not in TRACKERS:
        raise unknown("tracker", name, TRACKERS)
    try:
        import_module(TRACKERS[name])
    except ImportError:
        raise OptionError(f"--track {name} needs the extra: pip install 'fedwidth[{name}]'") from None


def make_tracker(name: str, title: str, settings: Settings, folder: Path) -> Tracker:
    """The tracker of this name for a run; it opens when the first round is logged."""
    check_tracker(name)
    made: dict[str, Callable[[str, Settings, Path], Tracker]] = {
        "tensorboard": _TensorBoard,
        "mlflow": _MLflow,
        "wandb": _Wandb,
    }
    return _Lazy(lambda: made[name](title, settings, folder)) if name else _Nothing()


def numbers(line: dict[str, Any]) -> dict[str, float]:
    """The plain numbers of a round's metrics, nested ones as capacity_accuracy/0.25.

    >>> numbers({"round": 3, "clients": [1, 2], "global_loss": None, "capacity_accuracy": {"0.25": 0.5}})
    {'round': 3.0, 'capacity_accuracy/0.25': 0.5}
    """
    flat: dict[str, float] = {}
    for key, value in line.items():
        if isinstance(value, dict):
            flat |= {f"{key}/{inner}": float(v) for inner, v in value.items()}
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            flat[key] = float(value)
    return flat


class _Nothing:
    def log(self, line: dict[str, Any]) -> None:
        del line

    def close(self) -> None:
        pass


class _Lazy:
    def __init__(self, make: Callable[[], Tracker]) -> None:
        self.make = make
        self.tracker: Tracker | None = None

    def log(self, line: dict[str, Any]) -> None:
        self.tracker = self.tracker or self.make()
        self.tracker.log(line)

    def close(self) -> None:
        if self.tracker is not None:
            self.tracker.close()


class _TensorBoard:
    def __init__(self, title: str, settings: Settings, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        del title, settings
        self.writer = SummaryWriter(str(folder / "tensorboard"))

    def log(self, line: dict[str, Any]) -> None:
        for key, value in numbers(line).items():
            self.writer.add_scalar(key, value, line["round"])

    def close(self) -> None:
        self.writer.close()


class _MLflow:
    def __init__(self, title: str, settings: Settings, folder: Path) -> None:
        import mlflow

        del folder
        self.mlflow = mlflow
        mlflow.start_run(run_name=title)
        mlflow.log_params({"method": settings.method.name, "seed": settings.seed})

    def log(self, line: dict[str, Any]) -> None:
        self.mlflow.log_metrics(numbers(line), step=line["round"])

    def close(self) -> None:
        self.mlflow.end_run()


class _Wandb:
    def __init__(self, title: str, settings: Settings, folder: Path) -> None:
        import wandb

        self.run = wandb.init(project="fedwidth", name=title, config=asdict(settings), dir=str(folder))

    def log(self, line: dict[str, Any]) -> None:
        self.run.log(numbers(line), step=line["round"])

    def close(self) -> None:
        self.run.finish()
