"""Stacks on a GPU: captured steps, merged convolutions, several side by side. Skipped where there is none.

In double precision, where a mistake cannot pass for a rounding, slots too: every optimiser.
"""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedwidth.data import from_tensors
from fedwidth.engines import FlatEngine, choose_engine, make_engine
from fedwidth.engines.stacks.pool import StackPool
from fedwidth.errors import UpdateError
from fedwidth.experiment import Experiment
from fedwidth.models import build
from fedwidth.settings import DataSettings, DeviceSettings, Settings, TrainingSettings
from small_runs import same

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICE = "cuda"

MODELS = {
    "preresnet18": lambda: build("preresnet18", widths=[16, 16, 32, 32]),
    "convolutions with bias": lambda: nn.Sequential(
        *(nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    ),
    "group norm": lambda: nn.Sequential(  # stacked with its channels first
        *(nn.Conv2d(3, 16, 3), nn.GroupNorm(1, 16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(16, 10),
    ),
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 32), nn.ReLU(), nn.Linear(32, 10)),
}
ALL = MODELS | {"cnn": lambda: build("cnn", data_shape=(3, 8, 8), widths=[16, 32])}

OPTIMISERS = TrainingSettings.__dataclass_fields__["optimiser"].metadata["choices"]

SMALL = 1e-10
"""In double precision. Adam blows up roundings where a gradient is nearly 0, batch norm where a variance is: on the CPU
the serial engine, started one rounding away, ends up to 8e-14 away from itself."""


def experiment(model, *, spoilt=None, dtype=torch.float32, **changes):
    """24 clients with ten samples each, 12 of them at half width and 12 at a quarter in a round of all."""
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(240, 3, 8, 8, generator=draw, dtype=dtype)
    targets = torch.randint(0, 10, (240,), generator=draw)
    settings = Settings(
        rounds=3,
        device=DEVICE,
        engine="vectorised",
        precision="float32",
        data=DataSettings(clients=24),
        devices=DeviceSettings("b1-c1", per_round=24),
        training=replace(Settings().training, batch_size=4, lr=0.05, clip=1.0),  # batches of 4, 4 and 2
    )
    settings = replace(settings, **changes)
    torch.manual_seed(0)
    made = ALL[model]().to(dtype)
    if spoilt is not None:
        shares = Experiment(settings, model=made, data=from_tensors(inputs, targets, inputs, targets)).partition
        inputs[shares[spoilt]] = 3e38 * inputs[shares[spoilt]].sign()  # too much for the first layer
    return Experiment(settings, model=made, data=from_tensors(inputs, targets, inputs, targets))


def state_of(model, **changes):
    return experiment(model, **changes).run().server.state


def worst(one, other):
    return max(float((one[n].double() - other[n].double()).abs().max()) for n in one)


@pytest.mark.parametrize("model", MODELS)
def test_they_agree_with_the_serial_engine(model):
    expected, first = state_of(model, engine="serial"), experiment(model).first_state
    found = state_of(model)
    assert worst(expected, first) > 0.001, "this run trains nothing"
    assert worst(expected, found) < 2e-4


@pytest.mark.parametrize("model", MODELS)
def test_they_repeat_bit_for_bit_however_many_train_side_by_side(model):
    expected = state_of(model)
    assert same(expected, state_of(model))
    run = experiment(model)
    alone = FlatEngine(run.trainer, StackPool(run.trainer, concurrent=1), averages_here=True)
    assert same(expected, run.run(engine=alone).server.state)


@pytest.mark.parametrize("model", MODELS)
def test_half_precision_goes_the_same_way(model):
    # How far it may stray depends on the model: norms over few samples blow up roundings. So: as far as serially.
    def stray(engine):
        return worst(state_of(model, engine=engine), state_of(model, engine=engine, precision="bf16"))

    assert 0 < stray("vectorised") < 2 * stray("serial")


@pytest.mark.parametrize("model", ["cnn", "preresnet18"])
def test_in_double_precision_they_agree_with_the_serial_engine_at_every_width(model):
    changes = {"dtype": torch.float64, "devices": DeviceSettings("a1-b1-c1-d1", per_round=24)}
    expected, first = state_of(model, engine="serial", **changes), experiment(model, **changes).first_state
    assert worst(expected, first) > 0.001, "this run trains nothing"
    assert worst(expected, state_of(model, **changes)) < SMALL


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_every_optimiser_takes_the_serial_one_s_steps(optimiser):
    # The third round is past the milestone; shares of 6 to 14 samples are 2 to 4 batches, the last one often short.
    training = replace(Settings().training, optimiser=optimiser, batch_size=4, clip=0.5, lr=0.01)
    changes = {
        "dtype": torch.float64,
        "data": DataSettings(clients=24, partition="dirichlet", partition_options={"alpha": 3.0}),
        "training": replace(training, schedule="multistep", milestones=[2]),
    }
    model = "convolutions with bias"
    expected, first = state_of(model, engine="serial", **changes), experiment(model, **changes).first_state
    assert worst(expected, first) > 0.001, "this run trains nothing"
    for engine in ("cuda", "vectorised"):
        assert worst(expected, state_of(model, engine=engine, **changes)) < SMALL, engine


def test_cohorts_of_changing_size_train_as_in_the_serial_engine():
    calm = replace(Settings().training, batch_size=5, lr=0.01)  # norms over two samples would blow up roundings
    changes = {"devices": DeviceSettings("b1-c1", dynamic=True, per_round=17), "rounds": 6, "training": calm}
    expected = state_of("preresnet18", engine="serial", **changes)
    assert worst(expected, state_of("preresnet18", **changes)) < 5e-4


def test_a_round_of_many_more_clients_captures_its_steps_again():
    # The orders of its samples need more room, at another address: all steps captured so far are of no use.
    found = {}
    for engine in ("serial", "vectorised"):
        run = experiment("convolutions with bias", engine=engine)
        made, state = make_engine(run.trainer), run.first_state
        for round, clients in enumerate((2, 24, 2)):
            tasks = run.method.assign(run.plan, [run.cohort(0)[client] for client in range(clients)], round)
            sums, _ = made.run(state, tasks, round)
            state = run.method.aggregate(state, sums, run.plan)
        made.close()
        found[engine] = state
    assert worst(found["serial"], found["vectorised"]) < 2e-4


@pytest.mark.parametrize("model", ["preresnet18", "convolutions with bias"])
def test_who_sent_what_is_not_finite_is_named_and_not_its_neighbour(model):
    unclipped = replace(Settings().training, batch_size=5, lr=0.05)
    with pytest.raises(UpdateError, match=r"^client 13 sent a value in '.*' that is not finite"):
        experiment(model, spoilt=13, training=unclipped).run()


def test_auto_takes_them_for_many_narrow_clients_and_slots_for_few():
    found = choose_engine(experiment("preresnet18", engine="auto").trainer)
    assert found.name == "vectorised"
    few = choose_engine(experiment("preresnet18", engine="auto", devices=DeviceSettings("b1-c1", per_round=10)).trainer)
    assert (few.name, "too few to stack" in few.reason) == ("cuda", True)
