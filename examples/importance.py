"""A method that looks at the model: a client trains the units whose weights are largest.

    python examples/importance.py

`reads=("state",)` says so: `at.state` is then the global model as the round begins, and sub-models are chosen only once
the round before has ended. In a recipe it is `method.name = "importance:METHOD"`, with this folder on the Python path.
The package's own method of this kind, with another score, is `fedimportance`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedwidth.methods import ROUNDING, Method, Moment, per_group
from fedwidth.plan.axis import Units


def units(size: int, kept: int, at: Moment) -> Tensor:
    """The units with the largest norm over all weights that come into them, in the first tensors of the group."""
    norms = torch.zeros(size)
    for name, dim in at.plan.groups[at.group].members:
        tensor, axis = at.state[name], at.plan.axes[name][dim]
        if name in at.plan.parameters and dim == 0 and isinstance(axis, Units):
            norms += tensor.detach().float().cpu().flatten(1).square().sum(1) if tensor.dim() > 1 else 0.0
    return norms.topk(kept).indices.sort().values


METHOD = Method(
    name="importance",
    title="Importance by weight norm",
    paper="an example",
    equation="-",
    choose=per_group(units),
    options={"rounding": ROUNDING},
    reads=("state",),
    shared=lambda _: True,
)


def main() -> None:
    """Train it beside FedRolex on digits, and show which units its narrow clients hold in the end."""
    from fedwidth.experiment import Experiment
    from fedwidth.settings import DataSettings, DeviceSettings, EvaluationSettings, ModelSettings, Settings

    settings = Settings(
        rounds=12,
        model=ModelSettings("mlp", {"hidden": [32]}),
        data=DataSettings(clients=10),
        devices=DeviceSettings("b1-c1", per_round=5),
        evaluation=EvaluationSettings(every=12),
    )
    for method in (METHOD.with_options(), None):
        run = Experiment(settings, method=method)
        result = run.run()
        print(f"{run.method.title}: {result.summary['global_accuracy']:.1%} after {settings.rounds} rounds")
        if method is not None:
            (task,) = run.method.assign(run.plan, [(0, 0.25)], 12, state=result.server.state)
            (kept,) = task.index.units.values()
            print("a client of 1/4 holds units", "".join("#" if u in kept else "." for u in range(32)))


if __name__ == "__main__":
    main()
