"""Models that go another way by what they read: a run is planned on samples that show all ways, or refused."""

import pytest
import torch
from torch import nn

import own_paths
from fedwidth.config.read import read_settings
from fedwidth.errors import PlanError
from fedwidth.experiment import Experiment
from fedwidth.plan.trace import trace
from fedwidth.plan.watching import reaching

RECIPE = """
rounds = 2
model.name = "own_paths:Experts"
data = { name = "own_paths:kinds", clients = 4, partition = "iid" }
devices = { per_round = 4, capacities = "1:1 1/2:1 1/4:1" }
engine = "serial"
"""


def experiment(*changes, **given):
    return Experiment(read_settings(RECIPE, changes).main, **given)


@pytest.mark.parametrize("width", ["1", "1/2"])
def test_experts_that_the_first_samples_do_not_reach_are_sliced(width):
    made = experiment(f"model.width={width}", "devices.relative_to=server")
    assert list(made.plan.groups) == ["first", "experts.0.0", "experts.1.0", "experts.2.0"]
    made.plan.check(made.model.cpu(), own_paths.kinds().batch(made.data.train, torch.arange(60))[0])
    assert experiment(f"model.width={width}", "devices.relative_to=server").plan.axes == made.plan.axes
    assert made.run().metrics[-1]["round"] == 2


def test_a_model_that_is_reached_as_a_whole_is_traced_on_two_samples_and_looked_at_no_further(monkeypatch):
    def looked(*_):
        raise AssertionError("samples were looked through")

    monkeypatch.setattr("fedwidth.config.build.telling", looked)
    made = experiment("model.name=own_paths:Route", "data.name=own_paths:lengths")
    assert made.plan.axes == trace(made.model, made.data.example()).axes


WHOLE = pytest.mark.filterwarnings("ignore:at 0.25 a device holds")


@WHOLE
def test_parameters_that_nothing_can_reach_stay_whole_as_before():
    class Spare(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.out, self.spare = nn.Linear(8, 16), nn.Linear(16, 3), nn.Linear(16, 16)

        def forward(self, x, kind):
            return self.out(torch.relu(self.first(x)))

    made = experiment(model=Spare())
    assert made.plan.axes == trace(Spare(), made.data.example()).axes
    assert list(made.plan.groups) == ["first"]


REFUSED = (
    r"the model goes another way by what it reads, and none of the 16 training samples that were looked at reaches"
    r" 'experts.2.0.weight' and 3 more: a narrow model would fail where one does; keep whole what leads there"
    r" \(model.keep = 'first'\), or take it out of the model$"
)
"""Where some samples are known to go to other experts than others."""


@WHOLE
def test_experts_that_no_sample_reaches_are_refused_before_training(monkeypatch):
    monkeypatch.setattr(reaching, "LOOKED_THROUGH", 16)
    data = own_paths.of_kinds(torch.tensor([0, 0, *[0, 1] * 7, *[2] * 44]))
    with pytest.raises(PlanError, match=REFUSED):
        experiment(data=data)
    with pytest.raises(PlanError, match=REFUSED):  # narrow models are measured though nobody has them
        experiment("devices.capacities=1:1", "evaluation.capacities=[1, 0.5]", data=data)
    kept = experiment("model.keep=first", data=data)  # as the line says
    assert list(kept.plan.groups) == ["experts.0.0", "experts.1.0"]
    assert kept.run().metrics[-1]["round"] == 2
    for whole in ("method.name=fedavg", "devices.capacities=1:1"):
        assert experiment(whole, data=data).run().metrics[-1]["round"] == 2


@WHOLE
def test_where_all_samples_go_one_way_a_warning_says_what_none_reaches(monkeypatch):
    monkeypatch.setattr(reaching, "LOOKED_THROUGH", 16)
    with pytest.warns(
        UserWarning, match=r"reaches 'experts.1.0.weight' and 7 more: if others do, a narrow model fails"
    ):
        experiment()


class Guarded(nn.Module):
    """A model that looks at values, though not to choose its way, and has a layer that it does not use."""

    def __init__(self):
        super().__init__()
        self.first, self.out = nn.Linear(8, 16), nn.Linear(16, 3)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x, kind):
        if not torch.isfinite(x).all():
            raise ValueError("a sample is not finite")
        return self.out(self.layers[1](torch.relu(self.layers[0](self.first(x)))))


@WHOLE
def test_a_model_that_looks_at_values_and_has_a_layer_it_never_uses_trains():
    with pytest.warns(UserWarning, match=r"none of the 60 .* reaches 'layers.2.weight' and 1 more: if others do"):
        made = experiment(model=Guarded())
    assert set(made.plan.groups) == {"first", "layers.0", "layers.1"}
    assert made.run().metrics[-1]["round"] == 2
