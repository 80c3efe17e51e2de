"""Your own model on your own tensors, trained by devices of five sizes.

python examples/own_model.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedwidth.data import from_tensors
from fedwidth.experiment import Experiment
from fedwidth.settings import DataSettings, DeviceSettings, MethodSettings, Settings, TrainingSettings


class Net(nn.Module):
    """Any module will do; this one has a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(20, 64)
        self.block = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
        self.classify = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, 4)."""
        x = self.embed(x)
        logits: Tensor = self.classify(torch.relu(x + self.block(x)))
        return logits


def samples(number: int, seed: int) -> tuple[Tensor, Tensor]:
    """Made-up data: the class says in which quadrant the first two of twenty features lie."""
    inputs = torch.randn(number, 20, generator=torch.Generator().manual_seed(seed))
    return inputs, (inputs[:, 0] > 0).long() + 2 * (inputs[:, 1] > 0).long()


def main() -> None:
    settings = Settings(
        rounds=15,
        method=MethodSettings("fedrolex"),
        data=DataSettings(clients=20, partition="dirichlet", partition_options={"alpha": 1.0}),
        devices=DeviceSettings("a1-b1-c1-d1-e1", per_round=5),
        training=TrainingSettings(lr=0.05, batch_size=20),
    )
    torch.manual_seed(0)
    experiment = Experiment(settings, model=Net(), data=from_tensors(*samples(2000, 1), *samples(500, 2)))
    print(experiment.plan)
    result = experiment.run()  # run("runs/own") saves everything there; with resume=True it goes on after a stop
    print(f"\ntest accuracy {result.summary['global_accuracy']:.1%} after {result.summary['rounds']} rounds")
    print("predictions", result.model(samples(5, 3)[0]).argmax(1).tolist(), "of", samples(5, 3)[1].tolist())


if __name__ == "__main__":
    main()
