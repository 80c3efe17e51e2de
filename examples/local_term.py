"""A method whose clients train otherwise: every gradient gains a pull of all weights towards 0 (the lasso).

    python examples/local_term.py

A local rule is element-wise, so the same few lines train one client at a time, clients in captured steps on a GPU, and
clients stacked into one batch of models; here three engines, one result. The rule combines with any way of choosing
sub-models: `[local] name = "local_term:METHOD"` in a recipe.
"""

from __future__ import annotations

from torch import Tensor

from fedwidth.methods import Local, LocalMoment, Method, Option
from fedwidth.methods.fedavg import choose


def gradient(g: Tensor, w: Tensor, start: Tensor, sent: dict[str, Tensor], at: LocalMoment) -> Tensor:
    """The gradient of the loss and of strength * |w|."""
    del start, sent
    return g.add(w.sign(), alpha=at.options["strength"])


METHOD = Method(
    name="lasso",
    title="Lasso",
    paper="an example",
    equation="-",
    choose=choose,
    options={"strength": Option(1e-3, "a number from 0 on", lambda v: v >= 0, "of the pull")},
    shared=lambda _: True,
    local=Local(gradient=gradient),
)


def main() -> None:
    """Count small weights with and without the pull, with FedRolex's windows, on three engines."""
    from dataclasses import replace

    import fedwidth
    from fedwidth.experiment import Experiment
    from fedwidth.methods import combine
    from fedwidth.settings import DataSettings, DeviceSettings, EvaluationSettings, ModelSettings, Settings

    settings = Settings(
        rounds=10,
        model=ModelSettings("mlp", {"hidden": [32]}),
        data=DataSettings(clients=10),
        devices=DeviceSettings("a1-b1-c1", per_round=5),
        evaluation=EvaluationSettings(every=10),
    )
    rolex = fedwidth.method("fedrolex")
    pulled = combine(rolex, METHOD.with_options(strength=3e-3))
    for method, engine in [(rolex, "serial"), (pulled, "serial"), (pulled, "cuda"), (pulled, "vectorised")]:
        result = Experiment(replace(settings, engine=engine), method=method).run()
        weights = max(result.server.state.values(), key=lambda tensor: tensor.numel())
        small = (weights.abs() < 1e-3).float().mean()
        print(f"{method.title}, {engine}: {small:.1%} small weights, accuracy {result.summary['global_accuracy']:.1%}")


if __name__ == "__main__":
    main()
